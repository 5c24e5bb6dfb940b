#include "d9d/data/order/global_batch_sampler.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/data/order/num_microbatches.h"
#include "d9d/data/order/permutation.h"

namespace d9d {

namespace {

nlohmann::json without_data(nlohmann::json order) {
  order.erase("data");
  return order;
}

// Where both runs know what their data is.
void check_same_data(const nlohmann::json& saved, const nlohmann::json& own) {
  if (!saved.contains("data") || !own.contains("data") || saved.at("data") == own.at("data")) return;
  const nlohmann::json &before = saved.at("data"), &now = own.at("data");
  std::string which = before.size() == now.size() ? "" : cat(" of ", before.size(), " sources, got ", now.size());
  for (std::size_t i = 0; which.empty() && i < before.size(); ++i) {
    if (before[i] == now[i]) continue;
    const std::string source = before.size() == 1 ? "" : cat(" in source ", i);
    const auto tokenizer = [](const nlohmann::json& data) { return data.value("tokenizer", std::string()); };
    which = tokenizer(before[i]) == tokenizer(now[i]) ? cat(", got other documents", source)
                                                      : cat(", got tokens of another tokenizer", source);
  }
  throw StateError(cat("[data::GlobalBatchSampler::resume] expected the data that the saved run began with", which,
                       ". Resume with that, or begin a new job, in another save_dir, with the checkpoint as "
                       "trainer.model_stage_factory.source_checkpoint."));
}

}  // namespace

GlobalBatchSampler::GlobalBatchSampler(Options options)
    : options_(options),
      microbatches_per_step_(num_microbatches_for_global_batch({.data_parallel_size = options.rank.size,
                                                                .global_batch_size = options.global_batch_size,
                                                                .microbatch_size = options.microbatch_size})) {
  D9D_CHECK(options.dataset_size >= 1, ConfigError,
            "[data::GlobalBatchSampler] expected samples, got dataset_size = ", options.dataset_size,
            ". Check the paths of the data.");
  D9D_CHECK(options.rank.index >= 0 && options.rank.index < options.rank.size, ConfigError,
            "[data::GlobalBatchSampler] expected a data-parallel rank below ", options.rank.size, ", got ",
            options.rank.index, ". Take both from one mesh axis.");
  // A step of so many microbatches never ends, and they fill the memory.
  constexpr std::int64_t kMostEpochs = 1000;
  D9D_CHECK(options.global_batch_size / kMostEpochs <= options.dataset_size, ConfigError,
            "[data::GlobalBatchSampler] expected a global_batch_size of at most ", kMostEpochs,
            " times the data's size of ", options.dataset_size, ", got ", options.global_batch_size, ". Lower it.");
}

std::int64_t GlobalBatchSampler::samples_per_rank() const {
  const std::int64_t full = options_.dataset_size / options_.global_batch_size * options_.global_batch_size;
  const std::int64_t rest = options_.drop_last ? 0 : options_.dataset_size - full;
  return full / options_.rank.size + (rest + options_.rank.size - 1) / options_.rank.size;
}

std::optional<std::int64_t> GlobalBatchSampler::num_microbatches() const {
  if (options_.repeat) return std::nullopt;
  return (samples_per_rank() + options_.microbatch_size - 1) / options_.microbatch_size;
}

std::int64_t GlobalBatchSampler::samples_in_step(std::int64_t step) const {
  const std::int64_t full = options_.global_batch_size / options_.rank.size;
  return options_.repeat ? full : std::min(full, samples_per_rank() - step * full);
}

std::int64_t GlobalBatchSampler::number_in_step(std::int64_t index) const {
  const std::int64_t here = index % microbatches_per_step_;
  if (options_.mode == ShardIndexingMode::kSequential) return here * options_.rank.size + options_.rank.index;
  const std::int64_t in_this_step = samples_in_step(index / microbatches_per_step_);
  const std::int64_t num_here = (in_this_step + options_.microbatch_size - 1) / options_.microbatch_size;
  return options_.rank.index * num_here + here;
}

std::vector<SampleKey> GlobalBatchSampler::sample_keys(std::int64_t index) const {
  const std::int64_t step = index / microbatches_per_step_;
  const std::int64_t in_this_step = samples_in_step(step);
  const std::int64_t first = index % microbatches_per_step_ * options_.microbatch_size;
  const std::int64_t last = std::min(first + options_.microbatch_size, in_this_step);
  D9D_ASSERT(index >= 0 && first < last, "microbatch ", index, " of ", samples_per_rank(), " samples");
  std::vector<SampleKey> samples;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t in_batch = options_.mode == ShardIndexingMode::kSequential
                                      ? i * options_.rank.size + options_.rank.index
                                      : options_.rank.index * in_this_step + i;
    samples.push_back(sample_at(step * options_.global_batch_size + in_batch));
  }
  return samples;
}

std::vector<std::int64_t> GlobalBatchSampler::samples(std::int64_t index) const {
  std::vector<std::int64_t> samples;
  for (const SampleKey& key : sample_keys(index)) samples.push_back(key.index);
  return samples;
}

SampleKey GlobalBatchSampler::sample_at(std::int64_t position) const {
  const std::int64_t size = options_.dataset_size;
  const std::int64_t epoch = options_.repeat ? position / size : 0;
  const std::int64_t in_epoch = options_.repeat ? position % size : std::min(position, size - 1);
  const auto shuffled = [&] { return Permutation(size, {.seed = options_.seed, .epoch = epoch})(in_epoch); };
  return {.index = options_.shuffle ? shuffled() : in_epoch, .epoch = epoch};
}

nlohmann::json GlobalBatchSampler::state(std::int64_t num_consumed) const {
  nlohmann::json order = {{"dataset_size", options_.dataset_size},
                          {"shuffle_seed", options_.shuffle ? nlohmann::json(options_.seed) : nlohmann::json(nullptr)}};
  if (!options_.dataset_order.empty()) order["dataset_order"] = options_.dataset_order;
  if (!options_.dataset_identity.is_null()) order["data"] = options_.dataset_identity;
  return {{"num_samples", num_consumed * options_.microbatch_size * options_.rank.size},
          {"order", std::move(order)},
          {"layout",
           {{"global_batch_size", options_.global_batch_size},
            {"microbatch_size", options_.microbatch_size},
            {"num_ranks", options_.rank.size},
            {"shard_indexing_mode", enum_name(options_.mode)}}}};
}

std::int64_t GlobalBatchSampler::resume(const nlohmann::json& saved) const try {
  const nlohmann::json own = state(0);
  check_same_data(saved.at("order"), own.at("order"));
  const nlohmann::json saved_order = without_data(saved.at("order")), own_order = without_data(own.at("order"));
  D9D_CHECK(saved_order == own_order, StateError,
            "[data::GlobalBatchSampler::resume] expected the data order of the saved run, ", saved_order, ", got ",
            own_order, ". Resume with the dataset and the seed of the saved run.");
  const auto num_samples = saved.at("num_samples").get<std::int64_t>();
  const auto saved_global_batch = saved.at("layout").at("global_batch_size").get<std::int64_t>();
  const bool between_steps =
      saved_global_batch > 0 && num_samples % saved_global_batch == 0 && num_samples % options_.global_batch_size == 0;
  D9D_CHECK(num_samples >= 0 && (saved.at("layout") == own.at("layout") || between_steps), StateError,
            "[data::GlobalBatchSampler::resume] expected the saved position of ", num_samples,
            " samples to be a multiple of global_batch_size = ", options_.global_batch_size, " (saved with ",
            saved.at("layout"), "). Resume with the batch sizes of the saved run.");
  return num_samples / (options_.microbatch_size * options_.rank.size);
} catch (const nlohmann::json::exception& error) {
  throw StateError(cat("[data::GlobalBatchSampler::resume] expected the state of a data loader, got ", saved.dump(),
                       " (", error.what(), "). Load the state that this loader saved."));
}

}  // namespace d9d
