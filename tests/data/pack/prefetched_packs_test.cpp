#include "d9d/data/pack/prefetched_packs.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <semaphore>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/data/pack/as_pack_stream.h"

#include "tests/support/gpu_test.h"
#include "tests/support/io_faults.h"
#include "tests/support/stream_gate.h"

namespace d9d::prefetched_packs_test {
namespace {

using ::testing::HasSubstr;

// State that a stream shares with its test after it was moved into another stream.
struct Seen {
  std::atomic<std::int64_t> num_calls = 0;  // calls of next()
  std::atomic<std::int64_t> num_taken = 0;  // packs that the test has taken
  std::atomic<std::int64_t> furthest = 0;   // the largest difference of these numbers in any call
  std::atomic<bool> fails = false;
  std::counting_semaphore<> called{0};
};

// Pack i has i % 3 + 1 microbatches [i, j]; its position is i.
struct Numbers {
  std::optional<std::vector<at::Tensor>> next() {
    seen->furthest = std::max(seen->furthest.load(), ++seen->num_calls - seen->num_taken);
    seen->called.release();
    if (position == size) return std::nullopt;
    D9D_CHECK(position != 4 || !seen->fails, IoError, "row 7 of 'a.jsonl' is bad");
    std::vector<at::Tensor> pack;
    for (std::int64_t i = 0; i <= position % 3; ++i) pack.push_back(at::arange(position, position + 2).add_(10 * i));
    ++position;
    return pack;
  }
  std::optional<std::int64_t> total_steps() const { return size; }
  nlohmann::json state() const { return position; }
  void load_state(const nlohmann::json& state) { position = state; }
  std::vector<std::int64_t> microbatch_numbers() const { return {100 + position}; }

  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  std::int64_t size = 9;
  std::int64_t position = 0;
};

// A pack with the state and numbers that the stream reports after it.
struct Step {
  std::vector<at::Tensor> pack;
  nlohmann::json state;
  std::vector<std::int64_t> numbers;
};

std::optional<Step> step_of(PackStream<at::Tensor>& stream) {
  auto pack = stream.next();
  if (!pack) return std::nullopt;
  return Step{std::move(*pack), stream.state(), stream.microbatch_numbers()};
}

std::vector<Step> all(PackStream<at::Tensor>& stream) {
  std::vector<Step> steps;
  while (auto step = step_of(stream)) steps.push_back(std::move(*step));
  return steps;
}

void expect_equal(const std::vector<Step>& found, const std::vector<Step>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].state, expected[i].state);
    EXPECT_EQ(found[i].numbers, expected[i].numbers);
    ASSERT_EQ(found[i].pack.size(), expected[i].pack.size());
    for (std::size_t j = 0; j < found[i].pack.size(); ++j) {
      EXPECT_TRUE(at::equal(found[i].pack[j].cpu(), expected[i].pack[j]));
    }
  }
}

class Prefetched : public ::testing::TestWithParam<std::int64_t> {
 protected:
  std::unique_ptr<PrefetchedPacks<at::Tensor>> prefetched(c10::Device device = at::kCPU) const {
    return std::make_unique<PrefetchedPacks<at::Tensor>>(
        as_pack_stream<at::Tensor>(numbers), PrefetchOptions{.device = device, .prefetch_factor = GetParam()});
  }
  std::vector<Step> expected() const {
    Numbers plain = numbers;
    plain.seen = std::make_shared<Seen>();
    return all(*as_pack_stream<at::Tensor>(plain));
  }
  Numbers numbers;
};

TEST_P(Prefetched, Are_the_packs_of_the_stream_with_their_states) {
  const auto packs = prefetched();
  EXPECT_EQ(packs->state(), 0);
  EXPECT_EQ(packs->total_steps(), 9);
  packs->start();
  EXPECT_EQ(packs->state(), 0);
  expect_equal(all(*packs), expected());
  EXPECT_EQ(packs->next(), std::nullopt);
  EXPECT_EQ(packs->state(), 9);
}

TEST_P(Prefetched, Resume_after_any_pack) {
  const auto steps = expected();
  for (std::size_t done = 0; done <= steps.size(); ++done) {
    const auto killed = prefetched(), resumed = prefetched(), rewound = prefetched();
    for (std::size_t i = 0; i < done; ++i) (void)killed->next();
    for (std::size_t i = 0; i < 3; ++i) (void)rewound->next();
    const std::vector<Step> rest(steps.begin() + static_cast<std::ptrdiff_t>(done), steps.end());
    for (const auto& stream : {resumed.get(), rewound.get()}) {
      stream->load_state(killed->state());
      expect_equal(all(*stream), rest);
    }
  }
}

TEST_P(Prefetched, Throw_an_error_at_its_pack_and_go_on_there) {
  const auto steps = expected();
  numbers.seen->fails = true;
  const auto packs = prefetched();
  for (int i = 0; i < 4; ++i) (void)packs->next();
  for (int again = 0; again < 2; ++again) {
    EXPECT_THAT(test::message_of<IoError>([&] { (void)packs->next(); }), HasSubstr("row 7 of 'a.jsonl' is bad"));
    EXPECT_EQ(packs->state(), 4);
  }
  numbers.seen->fails = false;
  expect_equal(all(*packs), {steps.begin() + 4, steps.end()});
}

TEST_P(Prefetched, Are_read_no_further_ahead_than_asked) {
  numbers.size = 200;
  const auto packs = prefetched();
  for (int i = 0; i < 200; ++i, ++numbers.seen->num_taken) ASSERT_TRUE(packs->next());
  EXPECT_LE(numbers.seen->furthest, GetParam() + 1);
}

TEST_P(Prefetched, Are_read_while_the_step_runs) {
  const auto packs = prefetched();
  (void)packs->next();
  // The thread reads the maximum number of packs ahead without further calls of next().
  for (std::int64_t i = 0; i < 1 + GetParam(); ++i) numbers.seen->called.acquire();
  EXPECT_EQ(numbers.seen->num_calls, 1 + GetParam());
}

TEST_P(Prefetched, Can_be_given_back) {
  const auto steps = expected();
  const auto packs = prefetched();
  packs->give_back();
  for (int i = 0; i < 3; ++i) {
    (void)packs->next();
    packs->give_back();
    EXPECT_EQ(packs->state(), i + 1);
  }
  expect_equal(all(*packs), {steps.begin() + 3, steps.end()});
}

INSTANTIATE_TEST_SUITE_P(Factors, Prefetched, ::testing::Values(0, 1, 2, 3));

TEST(PrefetchedPacks, Know_the_size_of_the_next_pack_when_it_is_read) {
  PrefetchedPacks<at::Tensor> ahead(as_pack_stream<at::Tensor>(Numbers{.size = 3}), {.prefetch_factor = 1});
  EXPECT_EQ(ahead.num_next(), std::nullopt) << "nothing is read before the first call of next()";
  for (const std::size_t next : {2, 3}) {
    (void)ahead.next();
    while (!ahead.num_next()) std::this_thread::yield();
    EXPECT_EQ(ahead.num_next(), next);
  }
  (void)ahead.next();
  (void)ahead.next();
  EXPECT_EQ(ahead.num_next(), std::nullopt) << "behind the end";

  PrefetchedPacks<at::Tensor> plain(as_pack_stream<at::Tensor>(Numbers{}), {.prefetch_factor = 0});
  (void)plain.next();
  EXPECT_EQ(plain.num_next(), std::nullopt);
}

TEST(PrefetchedPacks, Abandon_a_pack_that_hangs_and_say_so) {
  struct Hanging : Numbers {
    std::optional<std::vector<at::Tensor>> next() {
      if (position == 1) {
        seen->called.release();
        goes_on->acquire();
      }
      return Numbers::next();
    }
    std::shared_ptr<std::binary_semaphore> goes_on = std::make_shared<std::binary_semaphore>(0);
  };
  const Hanging numbers;
  std::string log;
  {
    PrefetchedPacks<at::Tensor> packs(as_pack_stream<at::Tensor>(numbers),
                                      {.patience = std::chrono::milliseconds(1),
                                       .log = Logger().with_sink([&log](std::string_view line) { log += line; })});
    (void)packs.next();
    numbers.seen->called.acquire();  // reading pack 0
    numbers.seen->called.acquire();  // the next read, which hangs
    EXPECT_THROW(packs.load_state(0), StateError);
    EXPECT_THAT(test::message_of<StateError>([&] { (void)packs.next(); }), HasSubstr("got one that hangs"));
  }
  EXPECT_THAT(log, HasSubstr("a pack that is still being read is abandoned"));
  numbers.goes_on->release();
  numbers.seen->called.acquire();  // the abandoned thread still uses the stream
}

TEST(PrefetchedPacks, Stop_waiting_soon_after_the_job_was_asked_to_stop) {
  struct Hanging : Numbers {
    std::optional<std::vector<at::Tensor>> next() {
      goes_on->acquire();
      return Numbers::next();
    }
    std::shared_ptr<std::binary_semaphore> goes_on = std::make_shared<std::binary_semaphore>(0);
  };
  const Hanging numbers;
  {
    PrefetchedPacks<at::Tensor> packs(
        as_pack_stream<at::Tensor>(numbers),
        {.patience = std::chrono::milliseconds(1), .log = Logger({.sink = [](std::string_view) {}})});
    const InterruptScope scope;
    ::raise(SIGTERM);
    EXPECT_THAT(test::message_of<IoError>([&] { (void)packs.next(); }),
                HasSubstr("stopped, as asked, in PackStream::next(), which did not return"));
  }
  numbers.goes_on->release();
  numbers.seen->called.acquire();
}

class PrefetchedPacksCuda : public test::GpuTest {};

TEST_F(PrefetchedPacksCuda, Are_on_the_device) {
  for (const std::int64_t factor : {0, 1, 3}) {
    const Numbers numbers;
    PrefetchedPacks<at::Tensor> packs(as_pack_stream<at::Tensor>(numbers),
                                      {.device = at::Device(at::kCUDA, 0), .prefetch_factor = factor});
    const auto found = all(packs);
    for (const Step& step : found) EXPECT_TRUE(step.pack.front().is_cuda());
    expect_equal(found, all(*as_pack_stream<at::Tensor>(Numbers())));
  }
}

// The work of a step is blocked until the device has copied the pack of the next step. If the copies waited for that
// work, there would be a deadlock.
TEST_F(PrefetchedPacksCuda, Are_copied_before_the_work_of_the_step_before_them_ends) {
  struct Pinned : Numbers {
    std::optional<std::vector<at::Tensor>> next() {
      if (position == 2) may_read->acquire();
      return std::vector{values[static_cast<std::size_t>(position++)]};
    }
    std::shared_ptr<std::binary_semaphore> may_read = std::make_shared<std::binary_semaphore>(0);
    std::vector<at::Tensor> values = {};
  };
  const at::Device device(at::kCUDA, 0);
  Pinned numbers;
  for (int i = 0; i < 4; ++i) numbers.values.push_back(at::full({1 << 14}, i + 1, at::kFloat).pin_memory());
  numbers.size = 4;
  PrefetchedPacks<at::Tensor> packs(as_pack_stream<at::Tensor>(numbers), {.device = device, .prefetch_factor = 1});
  // Allocates all memory and loads the kernel beforehand, because these may synchronise with the device.
  const std::vector<at::Tensor> first = packs.next().value(), step = packs.next().value();
  at::Tensor result = first.front() * first.front();
  const c10::Stream current = at::accelerator::getCurrentStream(0);
  const c10::Stream other = c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(device);
  at::accelerator::synchronizeDevice(0);

  c10::Event ended(at::kCUDA), copied(at::kCUDA);
  test::StreamGate gate(device);
  at::mul_out(result, step.front(), result);
  ended.record(current);
  numbers.may_read->release();  // the pack of the next step is read, after the work of this one was queued
  std::vector<at::Tensor> next;
  {
    const c10::StreamGuard guard(other);  // this stream waits only for the copies
    next = packs.next().value();
    copied.record(other);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!copied.query() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  const bool is_copied = copied.query(), is_over = ended.query();
  gate.open();
  ended.synchronize();
  EXPECT_TRUE(is_copied) << "the copies wait for the step's work";
  EXPECT_FALSE(is_over);
  at::accelerator::synchronizeDevice(0);
  EXPECT_TRUE(at::equal(next.front().cpu(), numbers.values[2]));
  EXPECT_TRUE(at::equal(result.cpu(), numbers.values[1]));
}

// Packs have 512 MiB in pinned memory, and a step computes about as long as the copy of a pack takes.
TEST_F(PrefetchedPacksCuda, Are_copied_while_the_device_computes) {
  struct Large : Numbers {
    std::optional<std::vector<at::Tensor>> next() {
      if (position++ == size) return std::nullopt;
      return std::vector{values};
    }
    at::Tensor values = at::ones({128 << 20}, at::kFloat).pin_memory();
  };
  const Large large;
  const at::Device device(at::kCUDA, 0);
  const at::Tensor matrix = at::randn({4096, 4096}, at::TensorOptions(device).dtype(at::kBFloat16));
  const auto wait = [&] { (void)matrix[0][0].item(); };
  const auto seconds = [&](std::int64_t factor, int num_products) {
    PrefetchedPacks<at::Tensor> packs(as_pack_stream<at::Tensor>(large), {.device = device, .prefetch_factor = factor});
    at::Tensor sum = at::zeros({}, at::TensorOptions(device));
    (void)packs.next();
    wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 7; ++i) {
      sum += packs.next().value().front().sum();
      for (int j = 0; j < num_products; ++j) (void)at::mm(matrix, matrix);
      wait();  // as a step waits for its loss
    }
    const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_EQ(sum.item<double>(), 7.0 * (128 << 20));
    return elapsed;
  };
  (void)seconds(1, 1);  // loads kernels and creates memory pools
  const double copies = seconds(0, 0), hundred = seconds(0, 100) - copies;
  const int num_products = std::max(1, static_cast<int>(100 * copies / hundred));
  double one_by_one = 1e9, ahead = 1e9;  // minimum of three runs, as other programs may use the processors
  for (int i = 0; i < 3; ++i) {
    one_by_one = std::min(one_by_one, seconds(0, num_products));
    ahead = std::min(ahead, seconds(1, num_products));
  }
  RecordProperty("one_by_one", std::to_string(one_by_one));
  RecordProperty("ahead", std::to_string(ahead));
  std::cout << "copies " << copies << " s, with " << num_products << " products a step " << one_by_one << " s, ahead "
            << ahead << " s\n";
  EXPECT_LT(ahead, 0.75 * one_by_one);  // ideally 0.5, if copies and compute overlap completely
}

TEST_F(PrefetchedPacksCuda, Use_no_more_memory_over_a_thousand_packs) {
  struct Many : Numbers {
    std::optional<std::vector<at::Tensor>> next() {
      if (position++ == size) return std::nullopt;
      return std::vector{at::full({1 << 18}, position, at::kFloat).pin_memory()};
    }
  };
  Many many;
  many.size = 1100;
  const at::Device device(at::kCUDA, 0);
  PrefetchedPacks<at::Tensor> packs(as_pack_stream<at::Tensor>(many), {.device = device, .prefetch_factor = 2});
  const auto held = [] { return at::accelerator::getDeviceStats(0).reserved_bytes[0].current; };
  at::Tensor sum = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
  std::int64_t after_hundred = 0;
  for (int i = 0; auto pack = packs.next(); ++i) {
    sum += pack->front().sum(at::kDouble);
    if (i == 100) after_hundred = held();
  }
  EXPECT_LE(held(), after_hundred + (16 << 20)) << "a thousand packs have a thousand times 1 MiB";
  EXPECT_EQ(sum.item<double>(), 1100.0 * 1101 / 2 * (1 << 18));
}

}  // namespace
}  // namespace d9d::prefetched_packs_test
