#include "d9d/parallelism/fsdp/peer_exchange.h"

#include "d9d/base/check.h"

namespace d9d {

PeerExchange open_peer_exchange(ExchangeMethod method, std::string_view key, const std::shared_ptr<Communicator>& ranks,
                                std::int64_t num_bytes) {
  if (method == ExchangeMethod::kCommunicator) return {.peers = nullptr, .reason = "as configured"};
  if (ranks->size() == 1) return {.peers = nullptr, .reason = "one rank has all"};
  if (num_bytes == 0) return {.peers = nullptr, .reason = "nothing is trained"};
  if (ranks->device().is_meta()) return {.peers = nullptr, .reason = "its tensors have no values"};
  if (method == ExchangeMethod::kAuto && ranks->device().is_cpu()) {
    return {.peers = nullptr, .reason = "its ranks are on CPUs"};
  }
  PeerMemoryResult result = open_peer_memory(ranks, num_bytes);
  D9D_CHECK(result.memory != nullptr || method == ExchangeMethod::kAuto, ConfigError,
            "[parallelism::fsdp] expected ranks of group '", ranks->group().name,
            "' that can read each other's memory for ", key, " = copy_engine, got a group where ", result.reason,
            ". Use \"auto\" or \"communicator\".");
  return {.peers = std::move(result.memory), .reason = std::move(result.reason)};
}

std::string copies_description(const Communicator& ranks) {
  return cat("by copies from the memory of ", ranks.size() - 1, " peers: all ranks are on one machine");
}

}  // namespace d9d
