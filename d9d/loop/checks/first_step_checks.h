// Detects, in the first step, mistakes that would spoil a run without an error, such as equal data on all ranks or
// parameters that get no gradient.
//
// Example
//   check_data_order(context, stream->state());
//   FirstStep first(context);
//   first.check_packs({.hash = hash_of(pack.front())});
//   ...                                          // forward
//   first.watch(loss);
//   ...                                          // backward; the other microbatches
//   first.warn(stages);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "d9d/base/fnv1a.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/rng/default_generators.h"
#include "d9d/core/tree/tree.h"
#include "d9d/loop/graphs/graph_key.h"
#include "d9d/modules/module.h"

namespace d9d {

// Collective over all ranks. state: PackStream::state() before the first pack. Throws ConfigError on all ranks unless
// all ranks read the same dataset in the same order. Compares only the streams of make_pack_stream() and StreamedPacks.
void check_data_order(const DistContext& context, const nlohmann::json& state);

// Returns `hash` continued with the tensor's shape, dtype and, unless it is sparse, values. Waits for the tensor's
// device.
[[nodiscard]] std::uint64_t hash_tensor(const at::Tensor& tensor, std::uint64_t hash);

// Returns a hash of the tensors of a microbatch. If the microbatch consists only of tensors and plain values (numbers,
// strings, enums), the hash covers the plain values too. None if it has no tensors.
template <TensorTree Batch>
[[nodiscard]] std::optional<std::uint64_t> hash_of(Batch batch) {
  std::uint64_t hash = fnv1a("");
  if constexpr (kHasGraphKey<Batch>) hash = fnv1a(graph_key(batch, at::kCPU).value_or(""), hash);
  bool has_tensors = false;
  tree_for_each_leaf(batch, [&](const at::Tensor& leaf) {
    has_tensors |= leaf.defined();
    hash = hash_tensor(leaf, hash);
  });
  return has_tensors ? std::optional(hash) : std::nullopt;
}

// Identifies the first pack of a rank.
struct FirstPack {
  // hash_of() the first microbatch; none if it has no tensors.
  std::optional<std::uint64_t> hash = {};
  std::optional<std::int64_t> number = {};  // the first of PackStream::microbatch_numbers(), if the stream has them
};

class FirstStep {
 public:
  explicit FirstStep(const DistContext& context);

  // Collective over all ranks. Throws StateError on all ranks if two data-parallel ranks begin with the same samples,
  // or if ranks that compute a microbatch together begin with different ones. Accepts equal samples that have different
  // FirstPack::number: the dataset then contains a sample twice.
  void check_packs(const FirstPack& own) const;
  // Called before the backward of a microbatch. Collects the leaves of the loss's autograd graph.
  void watch(const at::Tensor& loss);
  // Collective over all ranks. Called after the last backward of the step, once its autograd graphs have been freed. Of
  // the ranks that have the same stages, the first warns of three mistakes: trained parameters that no rank's loss
  // depends on; tensors that its own losses train, that belong to no module and are still alive; and its own use of
  // LibTorch's random generators.
  void warn(const std::vector<std::shared_ptr<Module>>& stages);

 private:
  const DistContext& context_;
  const DefaultGenerators generators_;
  // Leaves of the losses' graphs, as weak pointers, so that leaves that forward creates are freed with their graphs.
  std::unordered_map<const at::TensorImpl*, c10::weak_intrusive_ptr<at::TensorImpl>> leaves_;
};

// Checks the optimiser's first step: that it changes every parameter that has a gradient, and that ranks which hold the
// same elements give them the same values.
//
// Example
//   FirstUpdate update;                   // of the job
//   update.begin(module, learning_rate);  // in each step
//   ...                                   // the optimiser's step
//   update.end(context, has_gradients);
class FirstUpdate {
 public:
  // Copies a few elements of each trained parameter. Does nothing at a learning rate of 0, or after end() has checked
  // enough.
  void begin(const Module& module, double learning_rate);
  // Collective over all ranks, with the same arguments. Checks the first step with a learning rate and gradients other
  // than 0, and a second one if a parameter did not change in it, as some optimisers only measure first. The main
  // process warns of parameters that have a gradient but whose copied elements have changed on no rank in both. Throws
  // ConfigError on all ranks if ranks that hold the same elements now have different values of them. Waits for the
  // device.
  void end(const DistContext& context, bool has_gradients);

 private:
  struct Sample {
    std::string name;
    std::uint64_t place = 0;  // hash of the positions that the rank's elements have in the whole parameter
    at::Tensor stored;        // the part of the parameter that the rank keeps, contiguous
    at::Tensor elements;      // [at most 1024], a view of `stored`
    at::Tensor before;        // copy of `elements` before the step
  };
  bool is_done_ = false;
  std::optional<std::set<std::string>> stayed_;  // in the first step that was checked; none: no step was
  double learning_rate_ = 0.0;
  std::vector<Sample> samples_;
};

// Local. Logs a warning if trained parameters of the model are float16: the loop does not scale losses.
void warn_of_float16(const DistContext& context, const Module& module);

// Returns whether a stage of the model is in evaluation mode; the main process then logs a warning.
bool warn_of_evaluation(const std::vector<std::shared_ptr<Module>>& stages, const DistContext& context,
                        std::int64_t step);

}  // namespace d9d
