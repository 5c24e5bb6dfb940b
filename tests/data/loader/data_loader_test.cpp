#include "d9d/data/loader/data_loader.h"

#include <signal.h>

#include <atomic>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/launch/thread_ranks.h"
#include "d9d/data/pack/fixed_count_packer.h"

#include "tests/support/io_faults.h"

namespace d9d::data_loader_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Batch = std::vector<std::int64_t>;

// Sample i is 10 * i; broken samples throw an error.
class Tens final : public Dataset<std::int64_t> {
 public:
  explicit Tens(std::int64_t size, std::set<std::int64_t> broken = {}) : size_(size), broken_(std::move(broken)) {}
  std::int64_t size() const override { return size_; }
  std::int64_t get(std::int64_t index) const override {
    if (broken_.contains(index)) throw std::runtime_error("disk on fire");
    return 10 * index;
  }

 private:
  std::int64_t size_;
  std::set<std::int64_t> broken_;
};

Batch collect(std::span<const std::int64_t> samples) { return {samples.begin(), samples.end()}; }

struct Job {
  std::int64_t dataset_size = 40;
  GlobalBatchSampler::Options sampling = {.global_batch_size = 4, .microbatch_size = 2};
  LoaderOptions loading = {};
  std::set<std::int64_t> broken = {};
};

DataLoader<Batch> make_loader(Job job) {
  job.sampling.dataset_size = job.dataset_size;
  return {std::make_shared<const Tens>(job.dataset_size, job.broken), collect, GlobalBatchSampler(job.sampling),
          job.loading};
}

std::vector<Batch> take(DataLoader<Batch>& loader, int count) {
  std::vector<Batch> batches;
  for (int i = 0; i < count; ++i) batches.push_back(loader.next().value());
  return batches;
}

class LoaderWithWorkers : public ::testing::TestWithParam<std::int64_t> {
 protected:
  LoaderOptions loading{.num_workers = GetParam(), .prefetch_factor = 3};
};
INSTANTIATE_TEST_SUITE_P(Threads, LoaderWithWorkers, ::testing::Values(0, 1, 4), ::testing::PrintToStringParamName());

TEST_P(LoaderWithWorkers, Hands_out_every_microbatch_in_order_and_ends) {
  auto loader =
      make_loader({.dataset_size = 6, .sampling = {.global_batch_size = 2, .microbatch_size = 2}, .loading = loading});
  EXPECT_EQ(loader.size(), 3);
  EXPECT_THAT(take(loader, 3), ElementsAre(Batch{0, 10}, Batch{20, 30}, Batch{40, 50}));
  EXPECT_EQ(loader.next(), std::nullopt);
  EXPECT_EQ(loader.next(), std::nullopt);
}

TEST_P(LoaderWithWorkers, Hands_out_what_the_sampler_says_when_shuffled_and_endless) {
  Job job{.dataset_size = 10,
          .sampling = {.dataset_size = 10,
                       .global_batch_size = 4,
                       .microbatch_size = 4,
                       .shuffle = true,
                       .seed = 2,
                       .repeat = true},
          .loading = loading};
  auto loader = make_loader(job);
  EXPECT_EQ(loader.size(), std::nullopt);
  const GlobalBatchSampler sampler(job.sampling);
  for (std::int64_t i = 0; i < 30; ++i) {
    Batch expected = sampler.samples(i);
    for (std::int64_t& value : expected) value *= 10;
    ASSERT_EQ(loader.next(), expected);
  }
}

TEST_P(LoaderWithWorkers, Continues_after_the_last_batch_handed_out_with_any_number_of_workers) {
  Job job{.sampling = {.global_batch_size = 4, .microbatch_size = 2, .shuffle = true, .seed = 7}, .loading = loading};
  auto loader = make_loader(job);
  (void)take(loader, 5);
  const nlohmann::json state = nlohmann::json::parse(loader.state().dump());
  const auto expected = take(loader, 15);
  for (const std::int64_t other_workers : {0, 1, 4}) {
    job.loading.num_workers = other_workers;
    auto resumed = make_loader(job);
    resumed.load_state(state);
    EXPECT_EQ(take(resumed, 15), expected) << other_workers;
    EXPECT_EQ(resumed.next(), std::nullopt);
  }
}

TEST_P(LoaderWithWorkers, Goes_back_to_a_loaded_position) {
  auto loader = make_loader({.loading = loading});
  const nlohmann::json start = loader.state();
  const auto expected = take(loader, 7);
  loader.load_state(start);
  EXPECT_EQ(take(loader, 7), expected);
}

TEST_P(LoaderWithWorkers, Names_the_sample_that_could_not_be_read_and_keeps_its_position) {
  auto loader = make_loader({.loading = loading, .broken = {5}});
  (void)take(loader, 2);
  const nlohmann::json before = loader.state();
  try {
    (void)loader.next();
    FAIL() << "no error";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("sample 5"), HasSubstr("disk on fire")));
    EXPECT_THROW(std::rethrow_if_nested(error), std::runtime_error);
  }
  EXPECT_EQ(loader.state(), before);
}

TEST_P(LoaderWithWorkers, Can_be_moved_and_dropped_at_work) {
  auto loader = make_loader({.loading = loading});
  (void)loader.next();
  auto moved = std::move(loader);
  EXPECT_EQ(moved.next(), (Batch{20, 30}));
}

// Counts down a latch at each of the first reads.
class Telling final : public Dataset<std::int64_t> {
 public:
  explicit Telling(std::latch& read) : read_(read) {}
  std::int64_t size() const override { return 40; }
  std::int64_t get(std::int64_t index) const override {
    if (!read_.try_wait()) read_.count_down();
    return 10 * index;
  }

 private:
  std::latch& read_;
};

TEST(DataLoader, Reads_before_it_is_asked_once_it_is_started) {
  const GlobalBatchSampler sampler({.dataset_size = 40, .global_batch_size = 4, .microbatch_size = 2});
  std::latch first_microbatches(4);  // prefetches two microbatches of two samples
  DataLoader<Batch> loader(std::make_shared<const Telling>(first_microbatches), collect, sampler, {.num_workers = 1});
  loader.start();
  loader.start();
  first_microbatches.wait();
  EXPECT_EQ(loader.next(), (Batch{0, 10}));
}

TEST(DataLoader, Goes_to_a_position_after_it_is_started) {
  auto loader = make_loader({.loading = {.num_workers = 2}});
  (void)take(loader, 3);
  const nlohmann::json state = loader.state();
  auto resumed = make_loader({.loading = {.num_workers = 2}});
  resumed.start();
  resumed.load_state(state);
  resumed.start();
  EXPECT_EQ(resumed.next(), loader.next());
}

// Storage whose reads hang until the test releases them.
struct Storage {
  std::latch answers{1};
  std::atomic<bool> hangs = false;
};
using StoragePtr = std::shared_ptr<Storage>;

class Hanging final : public Dataset<std::int64_t> {
 public:
  explicit Hanging(StoragePtr storage) : storage_(std::move(storage)) {}
  std::int64_t size() const override { return 40; }
  std::int64_t get(std::int64_t index) const override {
    if (index < 6) return 10 * index;
    storage_->hangs = true;
    storage_->hangs.notify_all();
    storage_->answers.wait();
    return 10 * index;
  }

 private:
  const StoragePtr storage_;
};

const LoaderOptions kImpatient{.num_workers = 2, .timeout_seconds = 0.05};

DataLoader<Batch> make_hanging_loader(const StoragePtr& storage, const LoaderOptions& loading = kImpatient) {
  const GlobalBatchSampler sampler({.dataset_size = 40, .global_batch_size = 4, .microbatch_size = 2});
  return {std::make_shared<const Hanging>(storage), collect, sampler, loading};
}

// Returns the message of the exception that `body` throws while storage hangs. A body that waits for storage fails
// after some time.
std::string error_without_storage(const std::function<void(const StoragePtr&)>& body) {
  const auto storage = std::make_shared<Storage>();
  auto ending = std::async(std::launch::async, [&]() -> std::string {
    try {
      body(storage);
    } catch (const std::exception& error) {
      return error.what();
    }
    return "no error";
  });
  EXPECT_EQ(ending.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "waited for the read that hangs";
  storage->answers.count_down();
  return ending.get();
}

TEST(DataLoader, Names_what_does_not_come_in_time_and_does_not_wait_for_it_in_the_end) {
  EXPECT_THAT(error_without_storage([](const StoragePtr& storage) {
                FixedCountMicrobatchPacker packs(make_hanging_loader(storage), {.microbatches_per_pack = 2});
                EXPECT_EQ(packs.next(), (std::vector<Batch>{{0, 10}, {20, 30}}));
                const nlohmann::json before = packs.state();
                EXPECT_THROW((void)packs.next(), IoError);
                EXPECT_EQ(packs.state(), before);
                (void)packs.next();  // a second call
              }),
              ::testing::AllOf(HasSubstr("read samples 6, 7 of the dataset within 0.05 seconds"),
                               HasSubstr("Check the storage")));
}

TEST(DataLoader, Reads_within_the_timeout_without_workers_too) {
  auto expected = make_loader({.loading = {.num_workers = 0}});
  auto loader = make_loader({.loading = {.num_workers = 0, .timeout_seconds = 60}});
  (void)take(loader, 3);
  loader.load_state(loader.state());
  (void)take(expected, 3);
  EXPECT_EQ(take(loader, 17), take(expected, 17));
  EXPECT_EQ(loader.next(), std::nullopt);
  std::vector<std::string> lines;
  const Logger log({.sink = [&](std::string_view line) { lines.emplace_back(line); }});
  EXPECT_THAT(error_without_storage([&](const StoragePtr& storage) {
                auto hanging = make_hanging_loader(storage, {.timeout_seconds = 0.05, .log = log});
                (void)take(hanging, 4);
              }),
              HasSubstr("read samples 6, 7 of the dataset within 0.05 seconds"));
  EXPECT_THAT(lines.at(0), ::testing::AllOf(HasSubstr("WARNING - data: has waited 0"),
                                            HasSubstr(" s for samples 6, 7 of the dataset, at most 0.05")));
}

// Reads one microbatch as the first of a loader, and then after other microbatches.
TEST(DataLoader, Waits_longer_for_the_first_microbatch_where_it_may) {
  std::vector<std::string> lines;
  LoaderOptions options{.num_workers = 1, .timeout_seconds = 0.05, .first_timeout_seconds = 0.3};
  options.log = Logger({.sink = [&](std::string_view line) { lines.emplace_back(line); }});
  const auto error = [&](bool is_first) {
    return error_without_storage([&](const StoragePtr& storage) {
      auto loader = make_hanging_loader(storage, options);
      auto other = make_hanging_loader(storage, options);
      (void)take(other, 3);
      if (is_first) loader.load_state(other.state());
      if (!is_first) (void)take(loader, 3);
      (void)loader.next();
    });
  };
  EXPECT_THAT(error(false), HasSubstr("within 0.05 seconds, got none. Check the storage that is read, or raise the"));
  lines.clear();
  EXPECT_THAT(error(true),
              HasSubstr("within 0.3 seconds, got none. Check the storage that is read, or raise trainer."));
  EXPECT_THAT(lines.at(0), HasSubstr("at most 0.3: the first that are read, for which it may open its files"));
}

TEST(DataLoader, Ends_a_wait_soon_after_the_job_was_asked_to_stop) {
  EXPECT_THAT(error_without_storage([](const StoragePtr& storage) {
                auto loader = make_hanging_loader(storage, {.timeout_seconds = 60,
                                                            .patience = std::chrono::milliseconds(10),
                                                            .log = Logger({.sink = [](std::string_view) {}})});
                (void)take(loader, 3);
                const InterruptScope scope;
                ::raise(SIGTERM);
                (void)loader.next();
              }),
              HasSubstr("stopped, as asked, in the wait for samples 6, 7 of the dataset"));
}

TEST(DataLoader, Hands_out_what_came_late_when_it_is_asked_again) {
  const auto storage = std::make_shared<Storage>();
  auto loader = make_hanging_loader(storage);
  (void)take(loader, 3);
  EXPECT_THROW((void)loader.next(), IoError);
  storage->answers.count_down();
  std::optional<Batch> batch;
  while (!batch) {
    try {
      batch = loader.next();
    } catch (const IoError&) {  // may happen on a busy machine
    }
  }
  EXPECT_EQ(batch, (Batch{60, 70}));
}

// After another exception or Ctrl-C, nothing waits for a hanging read.
TEST(DataLoader, Does_not_wait_long_in_the_end_for_a_read_that_hangs_and_says_so_once) {
  for (const double timeout : {0.05, 0.0}) {
    std::vector<std::string> lines;
    const Logger log({.sink = [&](std::string_view line) { lines.emplace_back(line); }});
    EXPECT_EQ(error_without_storage([&](const StoragePtr& storage) {
                auto loader = make_hanging_loader(
                    storage, {.num_workers = 1, .prefetch_factor = 1, .timeout_seconds = timeout, .log = log});
                (void)take(loader, 3);
                storage->hangs.wait(false);
                throw std::runtime_error("of another kind");
              }),
              "of another kind");
    EXPECT_THAT(lines, ElementsAre(HasSubstr(cat("WARNING - data: left the reading of samples 6, 7 behind, which did "
                                                 "not end within ",
                                                 timeout > 0 ? "0.05" : "5", " seconds. Check the storage"))));
  }
}

TEST(DataLoader, Tells_other_ranks_of_the_storage_that_hangs) {
  std::string told;
  const std::string error = error_without_storage([&](const StoragePtr& storage) {
    run_thread_ranks(2, [&](const std::shared_ptr<World>& world) {
      const auto all = world->communicator({.name = "all", .ranks = {0, 1}, .index = world->rank()});
      try {
        auto loader = make_hanging_loader(storage);
        if (world->rank() == 1) (void)take(loader, 4);
        all->barrier();
      } catch (const CommunicationError& failure) {
        told = failure.what();
        throw;
      }
    });
  });
  EXPECT_THAT(error, HasSubstr("rank 1: [data::DataLoader] expected to read samples 6, 7"));
  EXPECT_THAT(told, HasSubstr("rank 1 failed: [data::DataLoader] expected to read samples 6, 7"));
}

TEST(DataLoader, Rejects_options_out_of_range) {
  EXPECT_THROW(make_loader({.loading = {.num_workers = -1}}), ConfigError);
  EXPECT_THROW(make_loader({.loading = {.prefetch_factor = 0}}), ConfigError);
  EXPECT_THROW(make_loader({.loading = {.timeout_seconds = -1}}), ConfigError);
}

TEST(DataLoader, Is_a_loader_for_packers) { static_assert(MicrobatchLoader<DataLoader<Batch>>); }

// A custom sample with a make_padding() that makes it count nowhere.
struct Weighed {
  std::int64_t value = 0;
  std::int64_t weight = 1;
};
void make_padding(Weighed& sample) { sample.weight = 0; }

class WeighedTens final : public Dataset<Weighed> {
 public:
  std::int64_t size() const override { return 5; }
  Weighed get(std::int64_t index) const override { return {.value = 10 * index}; }
};

TEST(DataLoader, Makes_samples_that_another_rank_has_count_nowhere) {
  std::int64_t sum = 0, num_read = 0;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const GlobalBatchSampler sampler(
        {.dataset_size = 5, .global_batch_size = 6, .rank = {.index = rank, .size = 3}, .drop_last = false});
    const auto weigh = [](std::span<const Weighed> samples) {
      return Batch{samples.front().value * samples.front().weight};
    };
    DataLoader<Batch> loader(std::make_shared<const WeighedTens>(), weigh, sampler, {});
    for (; const auto batch = loader.next(); ++num_read) sum += batch->front();
  }
  EXPECT_EQ(num_read, 6);
  EXPECT_EQ(sum, 0 + 10 + 20 + 30 + 40);
}

TEST(DataLoader, Refuses_to_read_a_sample_twice_that_would_count_twice) {
  Job job{.dataset_size = 5, .sampling = {.global_batch_size = 6, .rank = {.index = 1, .size = 3}, .drop_last = false}};
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)make_loader(job); }),
              AllOf(HasSubstr("1 places too many"), HasSubstr("data.drop_last"), HasSubstr("make_padding")));
  job.dataset_size = 6;
  EXPECT_NO_THROW((void)make_loader(job));
}

}  // namespace
}  // namespace d9d::data_loader_test
