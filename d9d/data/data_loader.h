// Microbatches of a dataset in the order of a GlobalBatchSampler, read by the caller or by worker threads. Workers
// change when a sample is read, never what is handed out.
//
// Example
//   DataLoader<TokenBatch> loader(dataset, collate_fixed, sampler, {.num_workers = 4});
//   while (auto batch = loader.next()) train(*batch);
//   nlohmann::json position = loader.state();            // after the last batch handed out, whatever was read ahead
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/log.h"
#include "d9d/data/dataset.h"
#include "d9d/data/global_batch_sampler.h"
#include "d9d/data/ordered_workers.h"

namespace d9d {

struct LoaderOptions {
  std::int64_t num_workers = 0;      // threads; 0: next() reads in the calling thread
  std::int64_t prefetch_factor = 2;  // microbatches that each worker reads ahead
  // How long next() waits for a worker, and the end of workers for reads that have begun; 0: for ever, and 5 s.
  double timeout_seconds = 0;
  Logger log = Logger();  // told of reads that the end leaves behind
};

namespace detail {
// Throws ConfigError naming the first value out of range.
void check_loader_options(const LoaderOptions& options);
// Call inside a handler: the exception in flight is nested in the IoError and repeated in its text.
[[noreturn]] void throw_sample_error(std::int64_t sample, const char* what);
[[noreturn]] void throw_timeout(const std::vector<std::int64_t>& samples, double seconds);
[[nodiscard]] double patience_seconds(const LoaderOptions& options);
void warn_left_behind(const LoaderOptions& options, const std::vector<std::int64_t>& samples);
}  // namespace detail

template <class Batch>
class DataLoader {
 public:
  // `dataset` is a Dataset<Sample>; `collate` makes a Batch of std::span<const Sample>, the samples of a microbatch.
  // Both are called from all workers at once.
  template <class AnyDataset, class Collate>
  DataLoader(std::shared_ptr<AnyDataset> dataset, Collate collate, GlobalBatchSampler sampler, LoaderOptions options)
      : sampler_(std::move(sampler)), options_(std::move(options)) {
    detail::check_loader_options(options_);
    using Sample = std::remove_cvref_t<decltype(dataset->get(0))>;
    read_ = [dataset = std::move(dataset), collate = std::move(collate), sampler = sampler_](std::int64_t index) {
      std::vector<Sample> samples;
      for (const std::int64_t sample : sampler.samples(index)) {
        try {
          samples.push_back(dataset->get(sample));
        } catch (const std::exception& error) {
          detail::throw_sample_error(sample, error.what());
        }
      }
      return Batch(collate(std::span<const Sample>(samples)));
    };
  }

  // Workers begin to read what next() will hand out first; otherwise its first call lets them begin.
  void start() {
    if (options_.num_workers == 0 || workers_) return;
    const auto warn = [sampler = sampler_, options = options_](const std::vector<std::int64_t>& microbatches) {
      std::vector<std::int64_t> samples;
      for (const std::int64_t index : microbatches)
        std::ranges::copy(sampler.samples(index), std::back_inserter(samples));
      detail::warn_left_behind(options, samples);
    };
    workers_ = std::make_unique<OrderedWorkers<Batch>>(
        read_, typename OrderedWorkers<Batch>::Options{
                   .first = num_consumed_,
                   .end = size(),
                   .num_workers = options_.num_workers,
                   .num_ahead = options_.num_workers * options_.prefetch_factor,
                   .patience = std::chrono::duration<double>(detail::patience_seconds(options_)),
                   .on_left_behind = warn});
  }

  // The next microbatch; nullopt when all were handed out. Throws IoError naming the sample that could not be read, or
  // the samples that did not come within the timeout; the position stays. load_state() and the destructor end the
  // workers: they wait for reads that have begun, but none longer than timeout_seconds says and none that next() has
  // waited for in vain. A read that still hangs is left behind with a warning that names its samples: its thread keeps
  // the dataset until it returns.
  [[nodiscard]] std::optional<Batch> next() {
    if (const auto end = size(); end && num_consumed_ >= *end) return std::nullopt;
    Batch batch = options_.num_workers == 0 ? read_(num_consumed_) : take();
    ++num_consumed_;
    return batch;
  }

  // Of the microbatch that next() last returned: GlobalBatchSampler::number_in_step().
  [[nodiscard]] std::int64_t microbatch_number() const { return sampler_.number_in_step(num_consumed_ - 1); }

  // Microbatches from the start; nullopt when endless.
  [[nodiscard]] std::optional<std::int64_t> size() const { return sampler_.num_microbatches(); }

  [[nodiscard]] nlohmann::json state() const { return sampler_.state(num_consumed_); }
  void load_state(const nlohmann::json& state) {
    num_consumed_ = sampler_.resume(state);
    workers_.reset();
  }

 private:
  Batch take() {
    start();
    std::optional<Batch> batch = workers_->take_within(std::chrono::duration<double>(options_.timeout_seconds));
    if (!batch) detail::throw_timeout(sampler_.samples(num_consumed_), options_.timeout_seconds);
    return std::move(*batch);
  }

  GlobalBatchSampler sampler_;
  LoaderOptions options_;
  std::function<Batch(std::int64_t)> read_;  // microbatch by index
  std::int64_t num_consumed_ = 0;
  std::unique_ptr<OrderedWorkers<Batch>> workers_;
};

}  // namespace d9d
