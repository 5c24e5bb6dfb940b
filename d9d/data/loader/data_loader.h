// Reads the microbatches of a dataset in the order of a GlobalBatchSampler, on the calling thread or on worker threads.
// Workers affect when a sample is read, but never the order of the results.
//
// Example
//   DataLoader<TokenBatch> loader(dataset, collate_fixed, sampler, {.num_workers = 4});
//   while (auto batch = loader.next()) train(*batch);
//   nlohmann::json position = loader.state();            // after the last batch returned, even if more is prefetched
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
#include "d9d/data/loader/ordered_workers.h"
#include "d9d/data/order/global_batch_sampler.h"
#include "d9d/data/sequences/dataset.h"

namespace d9d {

struct LoaderOptions {
  std::int64_t num_workers = 0;      // threads; 0: next() reads in the calling thread
  std::int64_t prefetch_factor = 2;  // microbatches that each worker reads ahead
  // How long next() waits for a microbatch; 0: for ever. With a timeout and num_workers = 0, one thread reads while
  // next() waits.
  double timeout_seconds = 0;
  // A longer timeout for the first microbatch, for which the dataset may have to open its files. Has no effect if it is
  // shorter than timeout_seconds, or if timeout_seconds is 0.
  double first_timeout_seconds = 0;
  // How long load_state() and the destructor wait for reads that have begun, and how long next() waits for a read after
  // the job was asked to stop; at most timeout_seconds, if that is not 0.
  std::chrono::duration<double> patience = kDefaultPatience;
  Logger log = Logger();  // warns of reads that take long or are abandoned
};

namespace detail {
// Throws ConfigError naming the first value out of range.
void check_loader_options(const LoaderOptions& options);
[[nodiscard]] std::string describe_loader(const LoaderOptions& options);
// Throws IoError that names the sample and repeats `what`. Must be called inside a catch handler: the exception being
// handled is nested in the IoError.
[[noreturn]] void throw_sample_error(std::int64_t sample, const char* what);
// Returns the timeout of the first microbatch or, if !is_first, of a later one; 0: no timeout.
[[nodiscard]] double timeout_seconds(const LoaderOptions& options, bool is_first);
[[noreturn]] void throw_timeout(const LoaderOptions& options, bool is_first, const std::vector<std::int64_t>& samples);
[[noreturn]] void throw_stopped(const std::vector<std::int64_t>& samples);
[[nodiscard]] double patience_seconds(const LoaderOptions& options);
void warn_long_wait(const LoaderOptions& options, bool is_first, const std::vector<std::int64_t>& samples,
                    double seconds);
void warn_left_behind(const LoaderOptions& options, const std::vector<std::int64_t>& samples);

// True if `Collate` is callable with a span of the samples that the dataset returns, and returns a Batch.
template <class Batch, class AnyDataset, class Collate>
inline constexpr bool kCollates =
    std::is_invocable_r_v<Batch, const Collate&,
                          std::span<const std::remove_cvref_t<decltype(std::declval<AnyDataset&>().get(0))>>>;

// Satisfied if there is a function make_padding(Sample&), which turns a sample into padding.
template <class Sample>
concept BecomesPadding = requires(Sample& sample) {
  make_padding(sample);
};
// For samples without make_padding(): throws ConfigError if the sampler needs padding, because a sample would then
// count on two ranks.
void check_no_padding(const GlobalBatchSampler& sampler);
}  // namespace detail

template <class Batch>
class DataLoader {
 public:
  // `dataset` is a Dataset<Sample>; `collate` makes a Batch from std::span<const Sample>, the samples of a microbatch.
  // All workers use `dataset` and `collate` concurrently. If the sampler needs padding (SampleKey::is_padding), `void
  // make_padding(Sample&)`, a function declared beside Sample, turns a sample into one that changes neither the loss
  // nor a metric; TokenSample has this function. Throws ConfigError if padding is needed and there is no such function.
  template <class AnyDataset, class Collate>
  DataLoader(std::shared_ptr<AnyDataset> dataset, Collate collate, GlobalBatchSampler sampler, LoaderOptions options)
      : sampler_(std::move(sampler)), options_(std::move(options)), samples_(describe_dataset(*dataset)) {
    detail::check_loader_options(options_);
    using Sample = std::remove_cvref_t<decltype(dataset->get(0))>;
    constexpr bool kCollates = detail::kCollates<Batch, AnyDataset, Collate>;
    static_assert(
        kCollates,
        "collate of DataLoader<Batch> must be callable, also when it is const, with std::span<const Sample> and "
        "return Batch; Sample is what the dataset's get() returns");
    if constexpr (!detail::BecomesPadding<Sample>) detail::check_no_padding(sampler_);
    if constexpr (kCollates) {
      read_ = [dataset = std::move(dataset), collate = std::move(collate), sampler = sampler_](std::int64_t index) {
        std::vector<Sample> samples;
        for (const auto& [sample, epoch, is_padding] : sampler.sample_keys(index)) {
          try {
            samples.push_back(sample_in_epoch(*dataset, sample, epoch));
            if constexpr (detail::BecomesPadding<Sample>) {
              if (is_padding) make_padding(samples.back());
            }
          } catch (const std::exception& error) {
            detail::throw_sample_error(sample, error.what());
          }
        }
        return Batch(collate(std::span<const Sample>(samples)));
      };
    }
  }

  // Starts the workers, which begin to read the first microbatches. Without this call, the first next() starts them.
  void start() {
    if (reads_itself() || workers_) return;
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
                   .num_workers = std::max<std::int64_t>(1, options_.num_workers),
                   .num_ahead = options_.num_workers * options_.prefetch_factor,
                   .patience = std::chrono::duration<double>(detail::patience_seconds(options_)),
                   .on_left_behind = warn});
  }

  // Returns the next microbatch; nullopt after the last. Throws IoError that names the sample whose read failed, or the
  // samples that were not read within the timeout or within `patience` after the job was asked to stop; the position
  // then does not change. If worker threads read, a long wait is logged as a warning: first after a minute or half the
  // timeout, whichever is shorter, then once a minute. load_state() and the destructor stop the workers. They wait for
  // reads that have begun, for at most `patience`, but do not wait at all if the last next() threw because a read took
  // too long. A read that still hangs is abandoned with a warning that names its samples; its thread keeps the dataset
  // alive until the read returns.
  [[nodiscard]] std::optional<Batch> next() {
    if (const auto end = size(); end && num_consumed_ >= *end) return std::nullopt;
    Batch batch = reads_itself() ? read_(num_consumed_) : take();
    ++num_consumed_;
    has_read_ = true;
    return batch;
  }

  // Returns GlobalBatchSampler::number_in_step() of the microbatch that next() returned last.
  [[nodiscard]] std::int64_t microbatch_number() const { return sampler_.number_in_step(num_consumed_ - 1); }

  // Number of microbatches from the start; nullopt if endless.
  [[nodiscard]] std::optional<std::int64_t> size() const { return sampler_.num_microbatches(); }

  [[nodiscard]] DataDescription describe() const {
    return {.line = detail::describe_loader(options_), .inputs = {sampler_.describe(samples_)}};
  }

  // Returns whether next() itself logs for which samples it waits.
  [[nodiscard]] bool tells_of_long_waits() const { return !reads_itself(); }

  [[nodiscard]] nlohmann::json state() const { return sampler_.state(num_consumed_); }
  void load_state(const nlohmann::json& state) {
    num_consumed_ = sampler_.resume(state);
    workers_.reset();
  }

 private:
  [[nodiscard]] bool reads_itself() const { return options_.num_workers == 0 && options_.timeout_seconds == 0; }

  Batch take() {
    start();
    const auto samples = [this] { return sampler_.samples(num_consumed_); };
    std::optional<Batch> batch = workers_->take_within(
        {.timeout = std::chrono::duration<double>(detail::timeout_seconds(options_, /*is_first=*/!has_read_)),
         .on_long_wait = [&](double seconds) { detail::warn_long_wait(options_, !has_read_, samples(), seconds); }});
    if (!batch && interrupt_requested()) detail::throw_stopped(samples());
    if (!batch) detail::throw_timeout(options_, /*is_first=*/!has_read_, samples());
    return std::move(*batch);
  }

  GlobalBatchSampler sampler_;
  LoaderOptions options_;
  DataDescription samples_;                  // description of the dataset
  std::function<Batch(std::int64_t)> read_;  // reads the microbatch with the given index
  std::int64_t num_consumed_ = 0;
  bool has_read_ = false;  // next() has returned a microbatch since construction
  std::unique_ptr<OrderedWorkers<Batch>> workers_;
};

}  // namespace d9d
