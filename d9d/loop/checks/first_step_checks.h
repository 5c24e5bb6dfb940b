// Detects mistakes that would spoil a run without an error, at its start: equal data on all ranks, parameters that
// nothing trains.
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

// Collective over all ranks. state: PackStream::state() before the first pack. Throws ConfigError on all ranks unless
// all of them read one dataset in one order. Only the streams of make_pack_stream() and StreamedPacks are compared.
void check_data_order(const DistContext& context, const nlohmann::json& state);

// Continues a hash with a tensor's shape, dtype and, unless it is sparse, values. Waits for the device if the tensor is
// on one.
[[nodiscard]] std::uint64_t hash_tensor(const at::Tensor& tensor, std::uint64_t hash);

// Returns a hash of a microbatch: of its tensors and, if it consists only of tensors and plain values, also of the
// plain values. None if it has no tensors.
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

  // Collective over all ranks. StateError on all of them if two data-parallel ranks begin with the same samples, or if
  // ranks that share a model's or a sequence's parts begin with different ones. The same samples with different numbers
  // are a dataset that repeats itself, and are accepted.
  void check_packs(const FirstPack& own) const;
  // Called before the backward of a microbatch. Collects the leaves of the autograd graph of its loss.
  void watch(const at::Tensor& loss);
  // Collective over all ranks, after the last backward, when nothing refers to the graphs any more. The first rank of
  // each pipeline stage logs parameters that no rank's losses depend on, and what it found itself: leaves that belong
  // to no module and outlive the step, and use of LibTorch's random generators.
  void warn(const std::vector<std::shared_ptr<Module>>& stages);

 private:
  [[nodiscard]] std::vector<at::Tensor> generator_states() const;

  const DistContext& context_;
  std::vector<at::Tensor> generators_;
  // The leaves of the losses' graphs. Weak pointers: a leaf that forward creates itself is freed with its graph.
  std::unordered_map<const at::TensorImpl*, c10::weak_intrusive_ptr<at::TensorImpl>> leaves_;
};

// Checks what the optimiser's first step changes. A parameter that the optimiser was not given is not trained, and
// ranks that update the same elements differently train different models.
//
// Example
//   FirstUpdate update;                   // of the job
//   update.begin(module, learning_rate);  // in each step
//   ...                                   // the optimiser's step
//   update.end(context, has_gradients);
class FirstUpdate {
 public:
  // Copies a few elements of each trained parameter. Does nothing at a learning rate of 0, and once a step has been
  // checked.
  void begin(const Module& module, double learning_rate);
  // Collective over all ranks, with the same arguments, in the first step that begin() has prepared and whose gradients
  // are not all 0. The main process logs parameters that have a gradient although their copied elements have changed on
  // no rank. Throws ConfigError on all ranks if ranks that hold the same elements now have different values. Waits for
  // the device.
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

// Local. Logs a warning if trained parameters of the model are float16: the loop does not scale losses.
void warn_of_float16(const DistContext& context, const Module& module);

// Returns whether a stage of the model is in evaluation mode; the main process then logs a warning.
bool warn_of_evaluation(const std::vector<std::shared_ptr<Module>>& stages, const DistContext& context,
                        std::int64_t step);

}  // namespace d9d
