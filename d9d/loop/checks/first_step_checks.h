// Mistakes that cost a run and say nothing, found at its start: equal data on all ranks, parameters that nothing
// trains.
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
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "d9d/base/fnv1a.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/tree/tree.h"
#include "d9d/loop/graphs/graph_key.h"
#include "d9d/modules/module.h"

namespace d9d {

// Collective over all ranks. `state`: PackStream::state() before the first pack. ConfigError on all ranks unless the
// streams of make_pack_stream() and StreamedPacks deal one dataset in one order; other streams are not compared.
void check_data_order(const DistContext& context, const nlohmann::json& state);

// Continues a hash with a tensor's shape, dtype and, unless it is sparse, values. Waits for a tensor of a device.
[[nodiscard]] std::uint64_t hash_tensor(const at::Tensor& tensor, std::uint64_t hash);

// Of the values of a microbatch: its tensors and, where it consists of tensors and plain values alone, these too. None
// for one without tensors.
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

// What a rank has in its first pack.
struct FirstPack {
  // Of the first microbatch; none if it has no tensors.
  std::optional<std::uint64_t> hash = {};
  std::optional<std::int64_t> number = {};  // of PackStream::microbatch_numbers(), if the stream has them
};

class FirstStep {
 public:
  explicit FirstStep(const DistContext& context);

  // Collective over all ranks. StateError on all of them if two data-parallel ranks begin with the same samples, or if
  // ranks that share a model's or a sequence's parts begin with different ones. The same samples with different numbers
  // are a dataset that repeats itself, and are accepted.
  void check_packs(const FirstPack& own) const;
  // Before a microbatch's backward. Walks the graph of the loss.
  void watch(const at::Tensor& loss);
  // Collective over all ranks, after the last backward, when nothing refers to the graphs any more. The first rank of
  // each pipeline stage logs parameters that no rank's losses depend on, and what it found itself: leaves that belong
  // to no module and outlive the step, and use of LibTorch's random generators.
  void warn(const std::vector<std::shared_ptr<Module>>& stages);

 private:
  [[nodiscard]] std::vector<at::Tensor> generator_states() const;

  const DistContext& context_;
  std::vector<at::Tensor> generators_;
  // Of the losses' graphs. Weak: a leaf that forward makes for itself ends with its graph.
  std::unordered_map<const at::TensorImpl*, c10::weak_intrusive_ptr<at::TensorImpl>> leaves_;
};

// What the optimiser's first step changes. A parameter that its optimiser does not have is not trained, and ranks that
// update the same elements differently train different models.
//
// Example
//   FirstUpdate update;                   // of the job
//   update.begin(module, learning_rate);  // in each step
//   ...                                   // the optimiser's step
//   update.end(context, has_gradients);
class FirstUpdate {
 public:
  // Copies a few elements of each trained parameter, until a step has been looked at. At a rate of 0: nothing.
  void begin(const Module& module, double learning_rate);
  // Collective over all ranks, with the same arguments, in the first step that begin() has prepared and whose gradients
  // are not all 0. The main process logs parameters with a gradient of which these elements are what they were on all
  // ranks. Throws ConfigError on all ranks where some that hold the same elements now have other values. Waits for the
  // device.
  void end(const DistContext& context, bool has_gradients);

 private:
  struct Sample {
    std::string name;
    std::uint64_t place = 0;  // a hash of which elements of the whole parameter the rank holds
    at::Tensor stored;        // what the rank keeps, contiguous
    at::Tensor elements;      // [at most kNumElements], in the memory of `stored`
    at::Tensor before;
  };
  bool is_done_ = false;
  double learning_rate_ = 0.0;
  std::vector<Sample> samples_;
};

// Local. Logs a warning of a model whose trained parameters compute in float16: losses are not scaled.
void warn_of_float16(const DistContext& context, const Module& module);

// Whether a stage of the model is in evaluation mode; the main process then logs a warning.
bool warn_of_evaluation(const std::vector<std::shared_ptr<Module>>& stages, const DistContext& context,
                        std::int64_t step);

}  // namespace d9d
