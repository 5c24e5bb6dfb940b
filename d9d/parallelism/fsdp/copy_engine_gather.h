// Slices that each rank copies from the memory of the others, where they lie. What orders writers and readers is one
// all_reduce of an element in begin() and one in end(), on the stream of the copies.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/peer_memory/peer_memory.h"
#include "d9d/parallelism/fsdp/shard_gather.h"

namespace d9d {

class CopyEngineGather final : public ShardGather {
 public:
  CopyEngineGather(std::shared_ptr<Communicator> ranks, std::shared_ptr<PeerMemory> peers);

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] at::Tensor allocate(std::int64_t num_bytes) override;
  [[nodiscard]] bool is_collective() const override { return !is_reading_; }
  void begin() override;
  void gather(const at::Tensor& full, const at::Tensor& slice) override;
  void end() override;
  void abandon() override { is_reading_ = false; }
  void close() override;

 private:
  void meet();
  void reopen();

  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<PeerMemory> peers_;  // null: closed
  at::Tensor slices_;                  // of all groups; its storage is the memory that peers read
  const void* opened_ = nullptr;       // where that memory was when it was opened
  c10::DataPtr moved_from_;            // where the values came from at the last reopen(): until they are copied
  std::int64_t num_allocated_ = 0;     // bytes
  at::Tensor token_;
  bool is_reading_ = false;
};

}  // namespace d9d
