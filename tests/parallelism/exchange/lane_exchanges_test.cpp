#include "d9d/parallelism/exchange/lane_exchanges.h"

#include <chrono>
#include <semaphore>

#include <gtest/gtest.h>

#include "tests/parallelism/one_rank.h"

namespace d9d::test::lane_exchanges_test {
namespace {

constexpr std::chrono::seconds kFar{20};  // far more than any of this takes

struct WatchedExchange {
  static constexpr bool kTakesMeta = false;

  WatchedExchange(std::shared_ptr<Communicator> ranks, LinkWatch& watch) : watch_(watch) {
    watch_.add_link(
        this, std::move(ranks), [] {},
        [this] { return looks_.release(), LinkWatch::Late{.ranks = {}, .timeout = kFar}; });
  }
  ~WatchedExchange() { watch_.remove_link(this); }
  WatchedExchange(const WatchedExchange&) = delete;
  WatchedExchange& operator=(const WatchedExchange&) = delete;
  void close() {}
  [[nodiscard]] std::int64_t num_closings() const { return 0; }
  [[nodiscard]] std::int64_t num_bytes() const { return 0; }
  [[nodiscard]] std::string reason() const { return ""; }
  [[nodiscard]] bool is_watched() { return looks_.try_acquire_for(kFar); }

 private:
  LinkWatch& watch_;
  std::counting_semaphore<> looks_{0};
};

// A graph has the exchange until its backward, and may be kept longer than the module.
TEST(LaneExchanges, Watch_an_exchange_that_outlives_them) {
  run_ranks(RankBackend::kThreads, 1, [](World& world) {
    std::shared_ptr<WatchedExchange> exchange;
    {
      const LaneExchanges<WatchedExchange> exchanges(mesh_of(world, "cp"), ExchangeMethod::kCopyEngine);
      exchange = exchanges.find(at::zeros({1}), [](const WatchedExchange&) { return true; }).exchange;
    }
    EXPECT_TRUE(exchange->is_watched());
  });
}

}  // namespace
}  // namespace d9d::test::lane_exchanges_test
