// What links between ranks keep in memory, what they reject, and what they leave after a failure. The ranks are
// threads, which use copies and flags, or GPUs, whose hosts run ahead of them.
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/peer_memory/shared_file.h"
#include "d9d/pipelining/executor/stage_links.h"

#include "tests/pipelining/executor/toy_part.h"
#include "tests/support/gpu_ranks.h"
#include "tests/support/stream_gate.h"

namespace d9d::test::links_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kMebibyte = 1 << 20, kMessageBytes = 32 * kMebibyte;
constexpr std::chrono::seconds kPromise{5};

// A flag between the hosts of two ranks.
class Flag {
 public:
  explicit Flag(World& world) : file_(open_shared_file(*world.communicator(group_of(world, "all")), 4).file) {}
  void set() const { value().store(1); }
  void wait() const {
    while (value().load() == 0) std::this_thread::yield();
  }

 private:
  [[nodiscard]] std::atomic_ref<std::uint32_t> value() const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(file_->data()));
  }
  std::shared_ptr<SharedFile> file_;
};

// Blocks the current stream of a GPU until it is opened or destroyed; does nothing on a CPU.
class Held {
 public:
  explicit Held(at::Device device) {
    if (device.is_cuda()) gate_.emplace(device);
  }
  ~Held() { open(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  void open() {
    if (gate_ && !std::exchange(is_open_, true)) gate_->open();
  }
  void open_and_wait() {
    open();
    if (gate_) at::accelerator::synchronizeDevice(at::accelerator::getDeviceIndex());
  }

 private:
  std::optional<StreamGate> gate_;
  bool is_open_ = false;
};

std::int64_t free_device_bytes() {
  const auto get = reinterpret_cast<int (*)(std::size_t*, std::size_t*)>(
      dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuMemGetInfo_v2"));
  std::size_t free_bytes = 0, all_bytes = 0;
  EXPECT_EQ(get(&free_bytes, &all_bytes), 0);
  return static_cast<std::int64_t>(free_bytes);
}

std::int64_t peak_bytes(at::Device device) {
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).allocated_bytes[kAll].peak;
}

Transfer message(std::int64_t from, std::int64_t number) {
  return {.source = {from}, .target = {1 - from}, .microbatch = {number}};
}

class Links : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (GetParam().backend == RankBackend::kNccl && !has_gpus(GetParam().num_ranks)) GTEST_SKIP() << "too few GPUs";
  }
  static void on_ranks(const std::function<void(World& world)>& body) {
    run_ranks(GetParam().backend, GetParam().num_ranks, body);
  }
  static bool are_gpus() { return GetParam().backend == RankBackend::kNccl; }
  static bool are_copies() { return GetParam().messages == ExchangeMethod::kCopyEngine; }
};
INSTANTIATE_TEST_SUITE_P(Threads, Links, ::testing::Values(Setting{RankBackend::kThreads, 2}),
                         [](const auto&) { return std::string("copies"); });
INSTANTIATE_TEST_SUITE_P(Nccl, Links,
                         ::testing::Values(Setting{RankBackend::kNccl, 2},
                                           Setting{RankBackend::kNccl, 2, ExchangeMethod::kCommunicator}),
                         [](const auto& setting) {
                           return setting.param.messages == ExchangeMethod::kCopyEngine ? "copies" : "communicator";
                         });

TEST_P(Links, Give_the_memory_of_inboxes_back) {
  if (!are_gpus() || !are_copies()) GTEST_SKIP() << "of copies between GPUs, whose memory other processes have open";
  on_ranks([](World& world) {
    const DistContext context = context_of(world);
    const at::Tensor sent = at::ones({kMessageBytes}, at::TensorOptions(world.device()).dtype(at::kByte));
    std::int64_t at_first = 0;
    for (std::int64_t i = 0; i < 20; ++i) {
      StageLinks links(context, StagePlacement::loop(2, 1), GetParam().links());
      links.begin_step({{1 - world.rank(), {.largest_bytes = kMessageBytes}}});
      links.send(message(world.rank(), 0), {sent});
      (void)links.receive(message(1 - world.rank(), 0), {sent});
      links.finish();
      if (i == 1) at_first = free_device_bytes();
    }
    const std::int64_t of_one_inbox = 2 * kMessageBytes;
    EXPECT_GE(free_device_bytes(), at_first - of_one_inbox - kMessageBytes);
  });
}

// The receiver receives nothing before the sender's host has queued all messages.
TEST_P(Links, Keep_no_more_of_what_is_sent_than_slots) {
  if (!are_gpus()) GTEST_SKIP() << "of GPUs, whose hosts run ahead";
  on_ranks([](World& world) {
    constexpr std::int64_t kNumMessages = 32, kNumSlots = 2;
    const DistContext context = context_of(world);
    const Flag is_queued(world);
    StageLinks links(context, StagePlacement::loop(2, 1), GetParam().links(kNumSlots));
    const auto begin_step = [&] { links.begin_step({{1 - world.rank(), {.largest_bytes = kMessageBytes}}}); };
    const auto send = [&](std::int64_t i) {
      links.send(message(0, i), {at::full({kMessageBytes}, i, at::TensorOptions(world.device()).dtype(at::kByte))});
    };
    const at::Tensor like = at::empty({kMessageBytes}, at::TensorOptions(at::kMeta).dtype(at::kByte));
    const auto receive = [&](std::int64_t i) {
      const at::Tensor received = links.receive(message(0, i), {like}).front();
      return at::stack({received.min(), received.max()});
    };
    begin_step();  // the first message loads kernels and opens communicators, which waits for the device and the peer
    if (world.rank() == 0) {
      send(0);
    } else {
      (void)receive(0).eq(0).all().item<bool>();
    }
    links.finish();
    at::accelerator::synchronizeDevice(world.device().index());
    begin_step();
    if (world.rank() == 0) {
      c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(world.device().index());
      const std::int64_t before = peak_bytes(world.device());
      for (std::int64_t i = 0; i < kNumMessages; ++i) send(i);
      is_queued.set();
      EXPECT_LE(peak_bytes(world.device()) - before, (kNumSlots + 2) * kMessageBytes);
    } else {
      Held held(world.device());
      std::vector<at::Tensor> ends;
      for (std::int64_t i = 0; i < kNumMessages; ++i) ends.push_back(receive(i));
      is_queued.wait();
      held.open_and_wait();
      for (std::int64_t i = 0; i < kNumMessages; ++i) {
        EXPECT_TRUE(ends[static_cast<std::size_t>(i)].eq(i).all().item<bool>()) << i;
      }
    }
    links.finish();
    at::accelerator::synchronizeDevice(world.device().index());
  });
}

// Announces another number of rows for its input, and computes with that number.
struct OtherRows : ToyStage {
  using ToyStage::ToyStage;
  std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary boundary) const override {
    auto leaves = ToyStage::transfer(microbatch, boundary);
    if (is_other && microbatch.value == 1) leaves.front() = leaves.front().narrow(0, 0, 1);
    return leaves;
  }
  bool is_other = false;
};

// This happens if each rank pads by its own samples. On CPUs all ranks of the pipeline compare before each step.
TEST_P(Links, Refuse_transfers_that_differ_in_a_later_step_before_anything_is_trained) {
  if (!are_copies()) GTEST_SKIP() << "NCCL does not tell how long a message is";
  on_ranks([](World& world) {
    const DistContext context = context_of(world);
    Part part(context, GPipeScheduleConfig{}, {.num_microbatches = 2, .has_more_tensors = false}, GetParam().links());
    auto other = std::make_unique<OtherRows>(part.network, StageIndex{1});
    OtherRows* const second = other.get();
    if (world.rank() == 1) part.stages.front() = std::move(other);
    for (int step = 0; step < 3; ++step) part.run();
    second->is_other = true;
    std::string error;
    try {
      part.run();
    } catch (const StateError& caught) {
      error = caught.what();
    }
    EXPECT_THAT(error, AllOf(HasSubstr("announce"), HasSubstr("from microbatch 1 on Double [2, 5]")));
  });
}

TEST_P(Links, Refuse_on_both_ranks_what_only_one_takes_for_longer) {
  if (!are_copies()) GTEST_SKIP() << "NCCL does not tell how long a message is";
  on_ranks([](World& world) {
    const DistContext context = context_of(world);
    StageLinks links(context, StagePlacement::loop(2, 1), GetParam().links());
    const auto step = [&](std::int64_t num_bytes) {
      links.begin_step(
          {{1 - world.rank(), {.largest_bytes = num_bytes, .transfers = cat("a message of ", num_bytes)}}});
      links.finish();
    };
    step(1000);
    std::string error;
    try {
      step(world.rank() == 0 ? 1000 : 2000);
    } catch (const StateError& caught) {
      error = caught.what();
    }
    EXPECT_THAT(error, HasSubstr("got a message of 1000 on the first and a message of 2000 on the second"));
    links.give_up();
  });
}

// Messages wait for receive buffers that nobody frees any more.
TEST_P(Links, Of_a_step_that_a_program_catches_end_at_once_and_run_no_other) {
  if (!are_gpus()) GTEST_SKIP() << "of GPUs, whose streams wait";
  on_ranks([](World& world) {
    const Flag has_ended(world);
    const DistContext context = context_of(world);
    std::optional<Part> part(std::in_place, context, PipelineScheduleConfig(GPipeScheduleConfig{}),
                             ToyShape{.num_microbatches = 6, .has_more_tensors = false},  // the host reads no values
                             GetParam().links(/*num_slots=*/1));
    part->run();
    if (world.rank() == 1) {
      Held held(world.device());
      std::string error;
      try {
        part->run();
        has_ended.wait();
        held.open_and_wait();
        world.throw_if_failed();
      } catch (const CommunicationError& caught) {
        error = caught.what();
      }
      EXPECT_THAT(error, HasSubstr("rank 0 gives up"));
      part.reset();
      return;
    }
    part->stages.front()->on_forward = [](StageIndex, MicrobatchIndex microbatch) {
      D9D_CHECK(microbatch.value != 3, IoError, "the toy breaks");
    };
    EXPECT_THROW(part->run(), IoError);
    part->stages.front()->on_forward = nullptr;
    if (are_copies()) {
      EXPECT_THROW(part->run(), StateError);
    }
    const auto begin = std::chrono::steady_clock::now();
    part.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kPromise);
    world.abort("rank 0 gives up");
    has_ended.set();
  });
}

// The host of the second rank waits for values, and gets arbitrary ones when the wait of the stream is ended.
TEST_P(Links, Tell_the_failure_of_a_rank_and_not_what_arrives_after_it) {
  if (!are_gpus()) GTEST_SKIP() << "of GPUs, whose streams go on";
  on_ranks([](World& world) {
    const DistContext context = context_of(world);
    Part part(context, PipelineScheduleConfig(GPipeScheduleConfig{}), ToyShape{.num_microbatches = 6},
              GetParam().links(/*num_slots=*/1));
    part.run();
    if (world.rank() == 1) {
      EXPECT_THAT([&] { part.run(); }, ThrowsMessage<CommunicationError>(HasSubstr("rank 0 gives up")));
      return;
    }
    part.stages.front()->on_forward = [](StageIndex, MicrobatchIndex microbatch) {
      D9D_CHECK(microbatch.value != 3, IoError, "the toy breaks");
    };
    EXPECT_THROW(part.run(), IoError);
    world.abort("rank 0 gives up");
  });
}

}  // namespace
}  // namespace d9d::test::links_test
