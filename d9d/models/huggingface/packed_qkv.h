// Query, key and value projections of each layer as one matrix self_attn.qkv_proj.weight: the rows of q, then of k,
// then of v; biases likewise. Serving engines store them in this form.
//
// Example
//   const StateMapper packed = mapper::sequential({from_huggingface, pack_qkv(sizes, "model.")});
//
// The mappers do not name other tensors; in a chain these pass by unchanged.
#pragma once

#include <string>

#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/models/huggingface/decoder_mapping.h"

namespace d9d {

// After "<backbone_prefix>layers.<i>.", and followed by "weight" or "bias".
inline constexpr const char* kPackedQkv = "self_attn.qkv_proj.";

// has_biases: of all three projections, in every layer.
[[nodiscard]] StateMapper pack_qkv(const DecoderSizes& sizes, const std::string& backbone_prefix,
                                   bool has_biases = false);
[[nodiscard]] StateMapper unpack_qkv(const DecoderSizes& sizes, const std::string& backbone_prefix,
                                     bool has_biases = false);

}  // namespace d9d
