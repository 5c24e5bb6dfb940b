#include "d9d/parallelism/fsdp/peer_exchange.h"

#include <utility>

#include "d9d/base/check.h"

namespace d9d {

PeerExchange open_peer_exchange(ExchangeMethod method, std::string_view key, const std::shared_ptr<Communicator>& ranks,
                                std::int64_t num_bytes, std::shared_ptr<LinkWatch> watch) {
  const auto none = [](std::string reason) {
    return PeerExchange{.peers = nullptr, .meeting = nullptr, .reason = std::move(reason)};
  };
  if (method == ExchangeMethod::kCommunicator) return none("as configured");
  if (ranks->size() == 1) return none("one rank has all");
  if (num_bytes == 0) return none("nothing is trained");
  if (ranks->device().is_meta()) return none("its tensors have no values");
  if (method == ExchangeMethod::kAuto && ranks->device().is_cpu()) return none("its ranks are on CPUs");
  PeerMemoryResult result = open_peer_memory(ranks, num_bytes);
  auto meeting = std::make_unique<StreamMeeting>(ranks, std::move(watch));
  if (result.memory != nullptr && !meeting->can_meet()) {
    result.memory->close();
    result = {.memory = nullptr, .reason = meeting->reason()};
  }
  D9D_CHECK(result.memory != nullptr || method == ExchangeMethod::kAuto, ConfigError,
            "[parallelism::fsdp] expected ranks of group '", ranks->group().name,
            "' that can read each other's memory for ", key, " = copy_engine, got a group where ", result.reason,
            ". Use \"auto\" or \"communicator\".");
  if (result.memory == nullptr) return none(std::move(result.reason));
  return {.peers = std::move(result.memory), .meeting = std::move(meeting), .reason = ""};
}

std::string copies_description(const Communicator& ranks) {
  return cat("by copies from the memory of ", ranks.size() - 1, " peers: all ranks are on one machine");
}

}  // namespace d9d
