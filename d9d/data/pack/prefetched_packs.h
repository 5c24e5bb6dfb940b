// Prefetches packs: a thread reads them and copies them to the device while earlier steps run.
//
// Example
//   PrefetchedPacks<TokenBatch> packs(std::move(stream), {.device = context.device(), .prefetch_factor = 1});
//   while (auto pack = packs.next()) step(*pack);                         // tensors are on the device
//
// Copies run on a separate CUDA stream, concurrently with compute; the current stream waits for the copies of its pack.
// Prefetching does not change the results: state() is the position after the pack that was returned last, whatever was
// read ahead, and an error in reading a pack is thrown by the next() that would have returned this pack. A stream whose
// packs depend on earlier steps needs prefetch_factor = 0.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <nlohmann/json.hpp>

#include "d9d/base/log.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/tree/tree.h"
#include "d9d/data/loader/ordered_workers.h"
#include "d9d/data/pack/pack_stream.h"

namespace d9d {

struct PrefetchOptions {
  c10::Device device = c10::DeviceType::CPU;
  std::int64_t prefetch_factor = 1;  // packs on the device besides the pack of the step; 0: next() reads and copies
  // How long the destructor, load_state() and give_back() wait for a pack that is being read, and approximately how
  // long next() waits for one after the job was asked to stop.
  std::chrono::duration<double> patience = kDefaultPatience;
  Logger log = Logger();
};

namespace detail {
// Replaces the tensor, if it is defined, by a copy on the device, even if the tensor is on that device already, because
// a task may write to the copy. The host does not wait for copies from pinned memory.
void copy_to(c10::Device device, at::Tensor& tensor);
void warn_left_behind(const PrefetchOptions& options);
void warn_long_wait(const PrefetchOptions& options, double seconds);
[[noreturn]] void throw_stopped();
// Returns a little more than options.patience, so that a loader inside the stream fails first: its error names the
// samples.
[[nodiscard]] std::chrono::duration<double> patience_of_wait(const PrefetchOptions& options);
[[noreturn]] void throw_left_behind();
}  // namespace detail

template <TensorTree Batch>
class PrefetchedPacks final : public PackStream<Batch> {
 public:
  PrefetchedPacks(std::unique_ptr<PackStream<Batch>> packs, PrefetchOptions options)
      : source_(std::make_shared<Source>(std::move(packs), options.device)),
        options_(std::move(options)),
        total_steps_(source_->packs->total_steps()),
        state_(source_->packs->state()) {}
  // A pack that is still being read after options.patience is abandoned with a warning; its thread keeps the stream
  // alive.
  ~PrefetchedPacks() override { stop(); }

  // Starts the underlying stream; the prefetching thread starts with the first call of next().
  void start() override {
    if (!workers_ && !is_left_behind_) source_->packs->start();
  }

  [[nodiscard]] DataDescription describe() const override {
    return {.line = cat(counted(options_.prefetch_factor, "pack"), " ahead, copied to ", options_.device),
            .inputs = {source_->packs->describe()}};
  }

  std::optional<std::vector<Batch>> next() override {
    check_usable();
    Fetched fetched = options_.prefetch_factor == 0 ? source_->fetch() : take();
    state_ = std::move(fetched.state);
    numbers_ = std::move(fetched.numbers);
    if (!fetched.pack) return std::nullopt;
    fetched.copied.wait();
    for (Batch& batch : *fetched.pack) {
      tree_for_each_leaf(batch, [](const at::Tensor& leaf) {
        if (leaf.defined()) keep_for_current_stream(leaf);
      });
    }
    return std::move(fetched.pack);
  }

  // Returns the number of microbatches in the pack that the following next() will return; nullopt if that pack is not
  // read yet or if the data has ended.
  [[nodiscard]] std::optional<std::size_t> num_next() const {
    std::optional<std::size_t> size;
    if (!workers_) return size;
    workers_->look([&](const Fetched& fetched) {
      if (fetched.pack) size = fetched.pack->size();
    });
    return size;
  }

  [[nodiscard]] std::vector<std::int64_t> microbatch_numbers() const override { return numbers_; }
  [[nodiscard]] std::optional<std::int64_t> total_steps() const override { return total_steps_; }
  [[nodiscard]] nlohmann::json state() const override { return state_; }
  // Throws StateError if a pack is still being read after options.patience.
  void load_state(const nlohmann::json& state) override {
    rewind_to(state);
    numbers_.clear();
    state_ = source_->packs->state();
  }

  // Drops the packs that were read ahead, and frees their device memory; the next call of next() reads them again.
  // Throws the errors of load_state().
  void give_back() {
    if (workers_) rewind_to(state_);
  }

 private:
  struct Fetched {
    std::optional<std::vector<Batch>> pack = {};  // nullopt at the end of the data
    StreamEvent copied = {};
    nlohmann::json state = {};
    std::vector<std::int64_t> numbers = {};
  };

  struct Source {
    Source(std::unique_ptr<PackStream<Batch>> stream, c10::Device where)
        : packs(std::move(stream)), device(where), copies(where) {}

    Fetched fetch() {
      Fetched fetched{.pack = packs->next()};
      if (fetched.pack) {
        fetched.numbers = packs->microbatch_numbers();
        fetched.copied = copies.run_at_once([&] {
          for (Batch& batch : *fetched.pack) {
            tree_for_each_leaf(batch, [&](at::Tensor& leaf) { detail::copy_to(device, leaf); });
          }
        });
      }
      fetched.state = packs->state();
      return fetched;
    }

    const std::unique_ptr<PackStream<Batch>> packs;
    const c10::Device device;
    const SideStream copies;
  };

  // Reads packs on the prefetching thread. After the end of the data or an error, it requests no further pack from the
  // stream.
  class Ahead {
   public:
    explicit Ahead(std::shared_ptr<Source> source) : source_(std::move(source)) {}
    Fetched fetch() {
      if (error_) std::rethrow_exception(error_);
      if (end_) return *end_;
      try {
        Fetched fetched = source_->fetch();
        if (!fetched.pack) end_ = fetched;
        return fetched;
      } catch (...) {
        error_ = std::current_exception();
        throw;
      }
    }

   private:
    const std::shared_ptr<Source> source_;
    std::exception_ptr error_;
    std::optional<Fetched> end_;
  };

  void start_thread() {
    if (workers_) return;
    const auto ahead = std::make_shared<Ahead>(source_);
    workers_ = std::make_unique<OrderedWorkers<Fetched>>(
        [ahead](std::int64_t) { return ahead->fetch(); },
        typename OrderedWorkers<Fetched>::Options{
            .num_workers = 1,
            .num_ahead = options_.prefetch_factor,
            .patience = detail::patience_of_wait(options_),
            .on_left_behind = [this](const std::vector<std::int64_t>&) { is_left_behind_ = true; }});
  }

  // After an error the stream is at the position where the failed step began, and the next call reads that step again.
  Fetched take() {
    start_thread();
    try {
      ResultWait wait;
      if (!source_->packs->tells_of_long_waits()) {
        wait.on_long_wait = [this](double seconds) { detail::warn_long_wait(options_, seconds); };
      }
      std::optional<Fetched> fetched = workers_->take_within(wait);
      if (!fetched) detail::throw_stopped();
      return std::move(*fetched);
    } catch (...) {
      workers_.reset();
      throw;
    }
  }

  void stop() {
    workers_.reset();
    if (is_left_behind_) detail::warn_left_behind(options_);
  }
  void rewind_to(const nlohmann::json& state) {
    workers_.reset();
    check_usable();
    source_->packs->load_state(state);
  }
  void check_usable() const {
    if (is_left_behind_) detail::throw_left_behind();
  }

  std::shared_ptr<Source> source_;
  const PrefetchOptions options_;
  const std::optional<std::int64_t> total_steps_;
  nlohmann::json state_;  // after the pack that was returned last
  std::vector<std::int64_t> numbers_;
  bool is_left_behind_ = false;  // an abandoned thread still uses the stream
  std::unique_ptr<OrderedWorkers<Fetched>> workers_;
};

}  // namespace d9d
