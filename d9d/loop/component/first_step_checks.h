// Mistakes that cost a run and say nothing, found at its start: equal data on all ranks, parameters that nothing
// trains.
//
// Example
//   check_data_order(context, stream->state());
//   FirstStep first(context);
//   first.check_batches(hash_of(pack.front()));
//   ...                                          // forward
//   first.watch(loss);
//   ...                                          // backward; the other microbatches
//   first.warn(module);
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include "d9d/base/fnv1a.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/tree/tree.h"
#include "d9d/modules/module.h"

namespace d9d {

// Collective over all ranks. `state`: PackStream::state() before the first pack. ConfigError on all ranks unless the
// streams of make_pack_stream() deal one dataset in one order; other streams are not compared.
void check_data_order(const DistContext& context, const nlohmann::json& state);

// Continues a hash with a tensor's shape, dtype and values. Waits for a tensor of a device.
[[nodiscard]] std::uint64_t hash_tensor(const at::Tensor& tensor, std::uint64_t hash);

// Of the tensors of a microbatch, for one that has any.
template <TensorTree Batch>
[[nodiscard]] std::uint64_t hash_of(Batch batch) {
  std::uint64_t hash = fnv1a("");
  tree_for_each_leaf(batch, [&](const at::Tensor& leaf) { hash = hash_tensor(leaf, hash); });
  return hash;
}

class FirstStep {
 public:
  explicit FirstStep(const DistContext& context);

  // Collective over the data-parallel ranks: of each the hash of its first microbatch. StateError on all of them when
  // two have the same.
  void check_batches(std::uint64_t hash) const;
  // Before a microbatch's backward. Walks the graph of the loss.
  void watch(const at::Tensor& loss);
  // After the last backward. Logs, on the main process, what this rank found: parameters that no loss depends on,
  // leaves that belong to no module, and use of LibTorch's random generators.
  void warn(const Module& module) const;

 private:
  [[nodiscard]] std::vector<at::Tensor> generator_states() const;

  const DistContext& context_;
  std::vector<at::Tensor> generators_;
  std::unordered_map<const at::TensorImpl*, at::Tensor> leaves_;  // of the losses' graphs
};

}  // namespace d9d
