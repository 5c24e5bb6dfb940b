#include "d9d/parallelism/fsdp/peer_exchange.h"

#include <string_view>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/forwarding_communicator.h"
#include "tests/support/ranks.h"

namespace d9d::test::peer_exchange_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Ranks whose first memory opens, and no other: from the second on, the first rank seems to be on another machine.
struct OpensOneMemory : ForwardingCommunicator {
  using ForwardingCommunicator::ForwardingCommunicator;
  Work all_gather(const at::Tensor& output, const at::Tensor& input) override {
    inner().all_gather(output, input).wait();
    auto* const bytes = static_cast<char*>(output.mutable_data_ptr());
    const auto found = std::string_view(bytes, output.nbytes()).find(kMachine);
    if (found != std::string_view::npos && num_opened_++ > 0) bytes[found + kMachine.size() + kTextHeader] = '?';
    return {};
  }

 private:
  static constexpr std::string_view kMachine = "machine";  // a key in CBOR, before its text
  static constexpr std::size_t kTextHeader = 2;
  int num_opened_ = 0;
};

TEST(PeerExchange, Is_refused_where_ranks_read_each_others_memory_but_cannot_meet) {
  run_ranks(RankBackend::kThreads, 3, [](World& threads) {
    const auto world = world_of<OpensOneMemory>(threads);
    const auto ranks = world->communicator(group_of(*world, "all"));
    const auto watch = std::make_shared<LinkWatch>(world);
    EXPECT_THAT(
        [&] { (void)open_peer_exchange(ExchangeMethod::kCopyEngine, "gather", ranks, /*num_bytes=*/1024, watch); },
        ThrowsMessage<ConfigError>(HasSubstr("got a group where its ranks are on several machines")));
  });
}

}  // namespace
}  // namespace d9d::test::peer_exchange_test
