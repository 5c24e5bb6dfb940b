// Composition of mappers (mapper/state_mapper.h). All names are checked when a mapper is made, before there are
// tensors.
//
// Example
//   const StateMapper layer = mapper::parallel({mapper::identity("norm"), merge_qkv});
//   const StateMapper model = mapper::parallel({mapper::with_prefix(layer, "layers.0.", "blocks.0."),
//                                               mapper::with_prefix(layer, "layers.1.", "blocks.1.")});
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "d9d/model_state/mapper/state_mapper.h"

namespace d9d {
class Module;
}

namespace d9d::mapper {

// The groups of all mappers, side by side. Throws ConfigError if two share an input or an output.
[[nodiscard]] StateMapper parallel(std::vector<StateMapper> mappers);

// One mapper after the other: outputs of each are inputs of the next. A tensor that a later mapper needs and no earlier
// one outputs is an input of the whole; one that no later mapper uses is an output of the whole. Groups that are
// connected by tensors become one group. Throws ConfigError if there is nothing to compose, or if a name that passes by
// a mapper is also one of its own names.
[[nodiscard]] StateMapper sequential(std::vector<StateMapper> mappers);

// The mapper with its outputs of floating-point types converted, see cast_floats().
[[nodiscard]] StateMapper in_dtype(const StateMapper& mapper, at::ScalarType dtype);

// Every num_shards-th group of the mapper, beginning with the index-th: the work of one of several ranks or threads.
[[nodiscard]] StateMapper shard(const StateMapper& mapper, std::int64_t num_shards, std::int64_t index);

// The mapper with prefixes before the names of its inputs and of its outputs.
[[nodiscard]] StateMapper with_prefix(const StateMapper& mapper, const std::string& of_inputs,
                                      const std::string& of_outputs);

// The mappers that have groups, in their order.
[[nodiscard]] std::vector<StateMapper> without_empty(std::vector<StateMapper> mappers);

// One identity for each name; for each parameter and persistent buffer of a module; for each output of a mapper.
[[nodiscard]] StateMapper identities(const std::set<std::string>& names);
[[nodiscard]] StateMapper identities_of_module(const Module& module);
[[nodiscard]] StateMapper identities_of_outputs(const StateMapper& mapper);

}  // namespace d9d::mapper
