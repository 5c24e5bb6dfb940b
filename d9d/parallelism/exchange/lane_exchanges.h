// The exchanges through peer memory that a module uses, one for each lane (World::lane), made when they are needed.
//
// Example
//   LaneExchanges<PeerRowExchange> exchanges(ranks, config.exchange, "parallelism::tensor");
//   if (const auto rows = exchanges.find(x, [&](PeerRowExchange& each) { return each.fits(n, dtype); })) ...
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/core/mesh/device_mesh.h"
#include "d9d/core/peer_memory/exchange_method.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/parallelism/exchange/exchange_memory.h"

namespace d9d {

// Exchange: made of a communicator and a LinkWatch, with close(), num_closings() and reason().
template <class Exchange>
class LaneExchanges final : public ExchangeMemory {
 public:
  // ranks: of one axis. area: for errors.
  LaneExchanges(DeviceMesh ranks, ExchangeMethod method, std::string_view area)
      : ranks_(std::move(ranks)), method_(method), area_(area) {}

  // Collective. The exchange of the caller's lane; null: by the communicator, as configured, or because tensors like
  // this one cannot be exchanged so, or !fits(exchange). With kAuto tensors of CPUs are left to the communicator. Throws
  // ConfigError if the configuration demands copies and the ranks cannot.
  template <class Fits>
  [[nodiscard]] std::shared_ptr<Exchange> find(const at::Tensor& like, const Fits& fits) const {
    using enum ExchangeMethod;
    if (method_ == kCommunicator || like.is_meta() || (method_ == kAuto && like.is_cpu())) return nullptr;
    const auto communicator = ranks_.lane_communicator();
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Exchange>& found = exchanges_[communicator->group().lane];
    if (!found) {
      if (watch_ == nullptr) watch_ = std::make_unique<LinkWatch>(ranks_.world());
      found = std::make_shared<Exchange>(communicator, *watch_);
    }
    if (fits(*found)) return found;
    D9D_CHECK(method_ == kAuto, ConfigError, "[", area_, "] expected ranks of group '", communicator->group().name,
              "' that can read each other's memory for exchange = copy_engine, got a group where ", found->reason(),
              ". Use \"auto\" or \"communicator\".");
    return nullptr;
  }

  void close() override {
    const std::lock_guard lock(mutex_);
    for (const auto& [lane, exchange] : exchanges_) exchange->close();
  }
  [[nodiscard]] std::int64_t num_closings() const override {
    const std::lock_guard lock(mutex_);
    std::int64_t sum = 0;
    for (const auto& [lane, exchange] : exchanges_) sum += exchange->num_closings();
    return sum;
  }

 private:
  const DeviceMesh ranks_;
  const ExchangeMethod method_;
  const std::string_view area_;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<LinkWatch> watch_;                             // null until an exchange is made
  mutable std::map<std::int64_t, std::shared_ptr<Exchange>> exchanges_;  // by lane
};

}  // namespace d9d
