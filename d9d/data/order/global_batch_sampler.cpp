#include "d9d/data/order/global_batch_sampler.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/data/order/num_microbatches.h"
#include "d9d/data/order/permutation.h"
#include "d9d/data/source/documents_identity.h"

namespace d9d {

namespace {

nlohmann::json without_data(nlohmann::json order) {
  order.erase("data");
  return order;
}

void check_same_data(const nlohmann::json& saved, const nlohmann::json& own) {
  const auto data_of = [](const nlohmann::json& order) { return order.value("data", nlohmann::json()); };
  const std::string difference = difference_of_data(data_of(saved), data_of(own));
  D9D_CHECK(difference.empty(), StateError,
            "[data::GlobalBatchSampler::resume] expected the data that the saved run began with", difference, ". ",
            kOtherDataRemedy);
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
  // A step of more epochs than this would practically never end, and its microbatches would fill the memory.
  constexpr std::int64_t kMostEpochs = 1000;
  D9D_CHECK(options.global_batch_size / kMostEpochs <= options.dataset_size, ConfigError,
            "[data::GlobalBatchSampler] expected a global_batch_size of at most ", kMostEpochs,
            " times the data's size of ", options.dataset_size, ", got ", options.global_batch_size, ". Lower it.");
}

DataDescription GlobalBatchSampler::describe(DataDescription samples) const {
  const std::string ranks = options_.rank.size == 1 ? ""
                                                    : cat(", dealt to ", options_.rank.size, " data-parallel ranks (",
                                                          enum_name(options_.mode), ")");
  const bool is_cut = !options_.repeat && options_.drop_last && options_.dataset_size % options_.global_batch_size != 0;
  return {.line = cat("order: ", counted(options_.dataset_size, "sample"),
                      options_.shuffle ? ", shuffled in each epoch" : " as they come", ", in global batches of ",
                      options_.global_batch_size, " and microbatches of ", options_.microbatch_size, ranks,
                      options_.repeat ? ", without end" : ", one epoch", is_cut ? " without its last samples" : ""),
          .inputs = {std::move(samples)}};
}

std::int64_t GlobalBatchSampler::num_left() const {
  return options_.drop_last || options_.repeat ? 0 : options_.dataset_size % options_.global_batch_size;
}

std::int64_t GlobalBatchSampler::samples_in_step(std::int64_t step) const {
  const bool is_full = options_.repeat || step < options_.dataset_size / options_.global_batch_size;
  return is_full ? options_.global_batch_size : num_left();
}

std::int64_t GlobalBatchSampler::microbatches_in_step(std::int64_t step) const {
  return divide_up(samples_in_step(step), options_.rank.size * options_.microbatch_size);
}

std::optional<std::int64_t> GlobalBatchSampler::num_microbatches() const {
  if (options_.repeat) return std::nullopt;
  const std::int64_t num_full = options_.dataset_size / options_.global_batch_size;
  return num_full * microbatches_per_step_ + microbatches_in_step(num_full);
}

std::int64_t GlobalBatchSampler::num_padding() const {
  const std::int64_t num_left = this->num_left(), num_ranks = options_.rank.size, size = options_.microbatch_size;
  if (options_.mode == ShardIndexingMode::kSequential) return round_up(num_left, num_ranks) - num_left;
  return divide_up(num_left, num_ranks * size) * num_ranks - divide_up(num_left, size);
}

std::int64_t GlobalBatchSampler::number_in_step(std::int64_t index) const {
  const std::int64_t here = index % microbatches_per_step_;
  if (options_.mode == ShardIndexingMode::kSequential) return here * options_.rank.size + options_.rank.index;
  return options_.rank.index * microbatches_in_step(index / microbatches_per_step_) + here;
}

std::vector<SampleKey> GlobalBatchSampler::sample_keys(std::int64_t index) const {
  const std::int64_t step = index / microbatches_per_step_, here = index % microbatches_per_step_;
  const std::int64_t num_samples = samples_in_step(step), size = options_.microbatch_size;
  D9D_ASSERT(index >= 0 && here < microbatches_in_step(step), "microbatch ", index, " of a step of ", num_samples,
             " samples");
  std::vector<SampleKey> samples;
  const auto add = [&](std::int64_t in_step) {
    const bool is_padding = in_step >= num_samples;
    samples.push_back(sample_at(step * options_.global_batch_size + (is_padding ? num_samples - 1 : in_step)));
    samples.back().is_padding = is_padding;
  };
  if (options_.mode == ShardIndexingMode::kSequential) {
    const std::int64_t end = std::min((here + 1) * size, divide_up(num_samples, options_.rank.size));
    for (std::int64_t i = here * size; i < end; ++i) add(i * options_.rank.size + options_.rank.index);
  } else {
    const std::int64_t first = number_in_step(index) * size, end = std::min(first + size, num_samples);
    for (std::int64_t i = first; i < end; ++i) add(i);
    if (first >= num_samples) add(first);
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
  const std::int64_t in_epoch = options_.repeat ? position % size : position;
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
  D9D_CHECK(
      saved_order == own_order, StateError,
      "[data::GlobalBatchSampler::resume] expected the data order of the saved run, ", saved_order, ", got ", own_order,
      ". Resume with the dataset and the seed of the saved run, or give trainer.data_phase a new name to begin with "
      "this data at its start.");
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
