// The usual data pipeline: dataset -> global order, distributed over the ranks -> loader -> one pack for each step.
//
// Example
//   auto stream = make_pack_stream<TokenBatch>(context, dataset, collate_fixed, config, {.seed = 1337});
//   while (auto pack = stream->next()) step(*pack);
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/tree/tree.h"
#include "d9d/data/build/auto_data_config.h"
#include "d9d/data/loader/data_loader.h"
#include "d9d/data/order/num_microbatches.h"
#include "d9d/data/pack/fixed_count_packer.h"
#include "d9d/data/pack/pack_stream.h"

namespace d9d {

// How long reading a microbatch may take, in seconds, where `timeout` is not set. Storage may need minutes to wake up;
// a dead mount should still be reported soon.
inline constexpr double kDefaultDataTimeout = 300;

struct StreamOptions {
  DataParallelRank rank = {};
  std::uint64_t seed = 0;                     // seed of the shuffled order
  std::string dataset_order = {};             // GlobalBatchSampler::Options::dataset_order
  nlohmann::json dataset_identity = nullptr;  // GlobalBatchSampler::Options::dataset_identity
  bool repeat = false;  // endless epochs, for jobs with a given number of steps; total_steps() is then unknown
  double first_timeout_seconds = 0;  // LoaderOptions::first_timeout_seconds
  Logger log = Logger();             // LoaderOptions::log
  Logger shared_log = Logger();      // messages that are the same on all ranks; only the main process writes them
};

// Returns `options` with the data-parallel coordinate and the logs of this rank. first_timeout_seconds becomes the
// current timeout of the world's process group, which is trainer.timeout.init_timeout while the job is built.
[[nodiscard]] StreamOptions on_rank_of(const DistContext& context, StreamOptions options);

// Converts the keys of a configuration to loader options. Workers always outlive a pass over the data, whatever
// persistent_workers is. Throws ConfigError if prefetch_factor or persistent_workers is set but num_workers is 0.
[[nodiscard]] LoaderOptions loader_options(const AutoDataConfig& config);

namespace detail {
[[nodiscard]] bool can_pin_memory();
[[nodiscard]] at::Tensor pin_memory(const at::Tensor& tensor);
}  // namespace detail

// Makes the pack stream of a dataset; `dataset` and `collate` are as in DataLoader's constructor. Ranks with the same
// data-parallel coordinate (ranks that differ only in pipeline, tensor, context or expert coordinates) get equal packs,
// and all ranks get the same number of packs. With config.pin_memory and a GPU, tensors are in page-locked memory.
template <TensorTree Batch, class AnyDataset, class Collate>
[[nodiscard]] std::unique_ptr<PackStream<Batch>> make_pack_stream(std::shared_ptr<AnyDataset> dataset, Collate collate,
                                                                  const AutoDataConfig& config, StreamOptions options) {
  constexpr bool kCollates = detail::kCollates<Batch, AnyDataset, Collate>;
  static_assert(kCollates,
                "collate of make_pack_stream<Batch> must be callable, also when it is const, with std::span<const "
                "Sample> and return Batch; Sample is what the dataset's get() returns");
  if constexpr (kCollates) {
    const GlobalBatchSampler sampler({.dataset_size = dataset->size(),
                                      .dataset_order = options.dataset_order,
                                      .dataset_identity = options.dataset_identity,
                                      .global_batch_size = config.global_batch_size,
                                      .microbatch_size = config.microbatch_size,
                                      .rank = options.rank,
                                      .mode = config.shard_indexing_mode,
                                      .shuffle = config.shuffle,
                                      .seed = options.seed,
                                      .drop_last = config.drop_last.value_or(true),
                                      .repeat = options.repeat});
    auto read = [collate = std::move(collate),
                 pin = config.pin_memory && detail::can_pin_memory()](const auto& samples) {
      const Batch batch = collate(samples);
      return pin ? tree_map(detail::pin_memory, batch) : batch;
    };
    LoaderOptions loading = loader_options(config);
    loading.first_timeout_seconds = options.first_timeout_seconds;
    loading.log = options.log;
    DataLoader<Batch> loader(std::move(dataset), std::move(read), sampler, loading);
    return std::make_unique<FixedCountMicrobatchPacker<DataLoader<Batch>>>(
        std::move(loader), PackerOptions{.microbatches_per_pack = num_microbatches_for_global_batch(
                                             {.data_parallel_size = options.rank.size,
                                              .global_batch_size = config.global_batch_size,
                                              .microbatch_size = config.microbatch_size}),
                                         .drop_last = config.drop_last.value_or(true)});
  } else {
    return nullptr;
  }
}

// Makes the pack stream of this rank: calls the function above with on_rank_of(context, options).
template <TensorTree Batch, class AnyDataset, class Collate>
[[nodiscard]] std::unique_ptr<PackStream<Batch>> make_pack_stream(const DistContext& context,
                                                                  std::shared_ptr<AnyDataset> dataset, Collate collate,
                                                                  const AutoDataConfig& config, StreamOptions options) {
  return make_pack_stream<Batch>(std::move(dataset), std::move(collate), config,
                                 on_rank_of(context, std::move(options)));
}

}  // namespace d9d
