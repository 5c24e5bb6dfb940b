// Maps tensors of one naming scheme to those of another: a graph of leaves (mapper/leaves.h) that nodes compose
// (mapper/compose.h). A mapper is a value without data. It consists of groups, each of which computes its outputs from
// its own inputs only, so that model state streams through it group by group.
//
// Example
//   const StateMapper merge_qkv = mapper::concatenate({"q", "k", "v"}, "qkv", 0);
//   merge_qkv.groups();                       // {{inputs: k, q, v; outputs: qkv}}
//   merge_qkv.apply({{"q", q}, {"k", k}, {"v", v}}).at("qkv");
//
// Reading and writing folders: model_state/load_model_state.h, model_state/mapped_sources.h.
#pragma once

#include <compare>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/dtensor.h"
#include "d9d/model_state/mapper/mapped_tensor.h"

namespace d9d {

struct StateGroup {
  std::set<std::string> inputs;
  std::set<std::string> outputs;
  auto operator<=>(const StateGroup&) const = default;
};

// A function of tensors in a mapper. Its effect on single elements is not known, so all of its inputs are read for any
// output.
struct MapFunction {
  std::string name;  // in messages
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::function<std::vector<DTensor>(const std::vector<DTensor>&)> apply;  // may be collective
  // The shapes and dtypes of the results of apply(), from those of its inputs.
  std::function<std::vector<StateSpec>(const std::vector<StateSpec>&)> infer;
};

using MappedTensors = std::map<std::string, MappedTensor>;

// A call of a function on mapped inputs; later parts refer to its results by name, like inputs.
struct FunctionCall {
  std::shared_ptr<const MapFunction> function;
  std::vector<MappedTensor> inputs;
  std::vector<std::string> results;
  std::vector<StateSpec> specs;  // of the results
};

// The result of mapping one group. Parts refer to the group's inputs and to results of calls.
struct MappedGroup {
  std::map<std::string, StateSpec> inputs;
  std::vector<FunctionCall> calls;  // in the order in which they run, the same on all ranks
  MappedTensors outputs;
};

namespace detail {

// "'a', 'b'", for messages.
[[nodiscard]] std::string quoted(const std::set<std::string>& names);

class MapperNode {
 public:
  // Throws ConfigError if two of the groups share an input or an output.
  explicit MapperNode(std::vector<StateGroup> groups);
  virtual ~MapperNode() = default;
  [[nodiscard]] const std::vector<StateGroup>& groups() const { return groups_; }
  // `inputs`: exactly those of one group. Appends to `calls`.
  [[nodiscard]] virtual MappedTensors map(const MappedTensors& inputs, std::vector<FunctionCall>& calls) const = 0;

 private:
  std::vector<StateGroup> groups_;
};

}  // namespace detail

class StateMapper {
 public:
  explicit StateMapper(std::shared_ptr<const detail::MapperNode> node) : node_(std::move(node)) {}

  // Sorted, the same on all ranks. No two share an input or an output.
  [[nodiscard]] const std::vector<StateGroup>& groups() const { return node_->groups(); }
  [[nodiscard]] std::set<std::string> inputs() const;
  [[nodiscard]] std::set<std::string> outputs() const;

  // Maps one group, from a description of its inputs. Throws StateError for names that are not the inputs of a group,
  // and for shapes and dtypes that do not fit, naming the leaf.
  [[nodiscard]] MappedGroup map(const std::map<std::string, StateSpec>& inputs) const;

  // The outputs of one group; each is contiguous, or the input itself. Collective if a function of the group is.
  [[nodiscard]] std::map<std::string, DTensor> apply(const std::map<std::string, DTensor>& inputs) const;
  [[nodiscard]] std::map<std::string, at::Tensor> apply(const std::map<std::string, at::Tensor>& inputs) const;

  [[nodiscard]] const detail::MapperNode& node() const { return *node_; }

 private:
  std::shared_ptr<const detail::MapperNode> node_;
};

// The outputs of a mapped group that are in `wanted`, computed from its inputs. They may be views.
[[nodiscard]] std::map<std::string, DTensor> run_group(const MappedGroup& group,
                                                       const std::map<std::string, DTensor>& inputs,
                                                       const std::set<std::string>& wanted);

[[nodiscard]] StateSpec spec_of(const DTensor& tensor);

}  // namespace d9d
