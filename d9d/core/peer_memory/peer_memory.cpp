#include "d9d/core/peer_memory/peer_memory.h"

#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/core/collectives/gather.h"
#include "d9d/core/peer_memory/cuda_peer_memory.h"
#include "d9d/core/peer_memory/host_peer_memory.h"
#include "d9d/core/peer_memory/meta_peer_memory.h"

namespace d9d {
namespace {

std::string machine() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

// The number of distinct values that the ranks have under a key.
std::size_t num_distinct(const std::vector<nlohmann::json>& ranks, const char* key) {
  std::set<nlohmann::json> values;
  for (const nlohmann::json& rank : ranks) values.insert(rank.at(key));
  return values.size();
}

}  // namespace

PeerMemoryResult open_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes,
                                  std::int64_t num_shared_bytes) {
  if (ranks->device().is_meta()) {
    return {.memory = open_meta_peer_memory(num_bytes, num_shared_bytes), .reason = ""};
  }
  const auto all = all_gather_object({{"machine", machine()}, {"process", ::getpid()}}, *ranks);
  if (num_distinct(all, "machine") > 1) return {.memory = nullptr, .reason = "its ranks are on several machines"};
  const std::size_t num_processes = num_distinct(all, "process");
  if (ranks->device().is_cpu()) {
    if (num_processes > 1) return {.memory = nullptr, .reason = "its ranks are processes on CPUs"};
    return {.memory = open_host_peer_memory(ranks, num_bytes, num_shared_bytes), .reason = ""};
  }
  if (num_processes < all.size()) return {.memory = nullptr, .reason = "its ranks share a process"};
  return open_cuda_peer_memory(ranks, num_bytes, num_shared_bytes);
}

}  // namespace d9d
