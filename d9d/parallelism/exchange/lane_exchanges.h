// The exchanges through peer memory that a module uses, one for each lane (World::lane), made when they are needed.
//
// Example
//   LaneExchanges<PeerRowExchange> exchanges(ranks, config.exchange);
//   const auto found = exchanges.find(x, [&](PeerRowExchange& each) { return each.fits(n, dtype); });
//   if (found.exchange) ...
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "d9d/core/mesh/device_mesh.h"
#include "d9d/core/peer_memory/exchange_method.h"
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/parallelism/exchange/exchange_memory.h"

namespace d9d {

// Exchange: made of a communicator and a LinkWatch, with close(), num_closings(), num_bytes() and reason(), and
// kTakesMeta: whether it exchanges tensors without values, as a plan of memory has them.
template <class Exchange>
class LaneExchanges final : public ExchangeMemory {
 public:
  LaneExchanges(DeviceMesh ranks, ExchangeMethod method) : ranks_(std::move(ranks)), method_(method) {}  // of one axis

  struct Found {
    std::shared_ptr<Exchange> exchange;  // null: by the communicator
    std::string reason;                  // why
  };
  // Collective. The exchange of the caller's lane, unless it is not configured, tensors like this one cannot be
  // exchanged so, or !fits(exchange). With kAuto tensors of CPUs are left to the communicator.
  template <class Fits>
  [[nodiscard]] Found find(const at::Tensor& like, const Fits& fits) const {
    using enum ExchangeMethod;
    if (method_ == kCommunicator) return {nullptr, "as configured"};
    if (like.is_meta() && !Exchange::kTakesMeta) return {nullptr, "its tensors have no values"};
    if (method_ == kAuto && like.is_cpu()) return {nullptr, "its ranks are on CPUs"};
    const auto communicator = ranks_.lane_communicator();
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Exchange>& found = exchanges_[communicator->group().lane];
    if (!found) {
      if (watch_ == nullptr) watch_ = std::make_shared<LinkWatch>(ranks_.world());
      // A graph that is kept longer than the module has the exchange, which needs the watch.
      found = std::shared_ptr<Exchange>(new Exchange(communicator, *watch_),
                                        [watch = watch_](Exchange* exchange) { delete exchange; });
    }
    if (fits(*found)) return {found, ""};
    return {nullptr, found->reason()};
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
  [[nodiscard]] std::int64_t num_bytes() const override {
    const std::lock_guard lock(mutex_);
    std::int64_t sum = 0;
    for (const auto& [lane, exchange] : exchanges_) sum += exchange->num_bytes();
    return sum;
  }

 private:
  const DeviceMesh ranks_;
  const ExchangeMethod method_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<LinkWatch> watch_;                             // null until an exchange is made
  mutable std::map<std::int64_t, std::shared_ptr<Exchange>> exchanges_;  // by lane
};

}  // namespace d9d
