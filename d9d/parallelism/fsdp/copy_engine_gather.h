// A gather by copy engines: each rank copies the slices of the other ranks from their memory. In begin() and end() the
// streams of the copies meet: owners have written their slices before the first, and write them again only after the
// second.
#pragma once

#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "d9d/core/peer_memory/peer_memory.h"
#include "d9d/parallelism/exchange/stream_meeting.h"
#include "d9d/parallelism/fsdp/shard_gather.h"

namespace d9d {

class CopyEngineGather final : public ShardGather {
 public:
  CopyEngineGather(std::shared_ptr<Communicator> ranks, std::shared_ptr<PeerMemory> peers,
                   std::unique_ptr<StreamMeeting> meeting);

  [[nodiscard]] std::string description() const override;
  [[nodiscard]] at::Tensor allocate(std::int64_t num_bytes) override;
  [[nodiscard]] bool is_collective() const override { return !is_reading_; }
  void begin() override;
  void gather(const at::Tensor& full, const at::Tensor& slice) override;
  void end() override;
  void abandon() override { is_reading_ = false; }
  void close() override;

 private:
  void reopen();

  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<PeerMemory> peers_;  // null if closed
  at::Tensor slices_;                  // the slices of all groups; its storage is the memory that peers read
  const void* opened_ = nullptr;       // address of slices_ when peers_ was opened; differs after an offload
  c10::DataPtr moved_from_;            // the memory that reopen() copies from, kept until end()
  std::int64_t num_allocated_ = 0;     // bytes
  std::unique_ptr<StreamMeeting> meeting_;
  bool is_reading_ = false;
};

}  // namespace d9d
