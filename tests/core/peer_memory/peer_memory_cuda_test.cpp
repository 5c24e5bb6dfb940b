// Words of one GPU alone: what between ranks is tested with two (peer_memory_test.cpp).
#include <chrono>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/peer_memory/peer_memory.h"

#include "tests/support/gpu_test.h"
#include "tests/support/ranks.h"

namespace d9d::test::peer_memory_cuda_test {
namespace {

const at::Device kGpu(at::kCUDA, 0);

class PeerMemoryCuda : public GpuTest {};

// Of more streams than there are hardware queues: a write by another stream would stand behind a wait in one of them.
TEST_F(PeerMemoryCuda, The_host_ends_waits_that_fill_every_hardware_queue) {
  constexpr int kNumStreams = 64;
  const auto world = one_rank_world(kGpu);
  const PeerMemoryResult opened = open_peer_memory(world->communicator(group_of(*world, "alone")), 1024, 64);
  ASSERT_NE(opened.memory, nullptr) << opened.reason;
  std::vector<SideStream> streams;
  std::vector<StreamEvent> passed;
  for (int i = 0; i < kNumStreams; ++i) {
    passed.push_back(streams.emplace_back(kGpu).run_at_once([&] { opened.memory->wait_for(/*word=*/4, 1); }));
  }
  for (const StreamEvent& event : passed) EXPECT_FALSE(event.is_complete());
  opened.memory->raise_at_once(4, 1);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (const StreamEvent& event : passed) {
    while (!event.is_complete() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(event.is_complete());
  }
  opened.memory->leave();
}

TEST_F(PeerMemoryCuda, The_host_sees_a_word_that_a_stream_has_raised) {
  const auto world = one_rank_world(kGpu);
  const PeerMemoryResult opened = open_peer_memory(world->communicator(group_of(*world, "alone")), 1024, 64);
  ASSERT_NE(opened.memory, nullptr) << opened.reason;
  opened.memory->raise(/*word=*/8, 77);
  opened.memory->wait_for(8, 77);
  StreamEvent::of_current_stream(kGpu).synchronize();
  EXPECT_EQ(*reinterpret_cast<const std::uint32_t*>(opened.memory->shared() + 8), 77U);
  opened.memory->leave();
}

}  // namespace
}  // namespace d9d::test::peer_memory_cuda_test
