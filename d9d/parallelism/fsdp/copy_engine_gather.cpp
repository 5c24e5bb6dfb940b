#include "d9d/parallelism/fsdp/copy_engine_gather.h"

#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/core/offload/storage_memory.h"
#include "d9d/parallelism/fsdp/flat_alignment.h"
#include "d9d/parallelism/fsdp/peer_exchange.h"

namespace d9d {

CopyEngineGather::CopyEngineGather(std::shared_ptr<Communicator> ranks, std::shared_ptr<PeerMemory> peers,
                                   std::unique_ptr<StreamMeeting> meeting)
    : ranks_(std::move(ranks)),
      peers_(std::move(peers)),
      slices_(peers_->own()),
      opened_(slices_.const_data_ptr()),
      meeting_(std::move(meeting)) {}

std::string CopyEngineGather::description() const { return copies_description(*ranks_); }

at::Tensor CopyEngineGather::allocate(std::int64_t num_bytes) {
  D9D_ASSERT(num_allocated_ + num_bytes <= slices_.numel(), "[parallelism::fsdp] slices of ", slices_.numel(),
             " bytes in all");
  const at::Tensor slice = slices_.narrow(0, num_allocated_, num_bytes);
  num_allocated_ += round_up(num_bytes, kFlatAlignmentBytes);
  return slice;
}

void CopyEngineGather::begin() {
  if (is_reading_) return;
  if (peers_ == nullptr || slices_.const_data_ptr() != opened_) reopen();
  meeting_->meet();
  is_reading_ = true;
}

void CopyEngineGather::gather(const at::Tensor& full, const at::Tensor& slice) {
  if (!is_reading_) return ranks_->all_gather(full, slice).wait();
  const std::int64_t offset = slice.storage_offset() * slice.element_size();
  for (std::int64_t i = 1; i <= ranks_->size(); ++i) {  // each rank begins with a different peer, to spread the load
    const std::int64_t rank = (ranks_->rank() + i) % ranks_->size();
    peers_->read(full.narrow(0, rank * slice.numel(), slice.numel()), rank, offset);
  }
}

void CopyEngineGather::end() {
  if (!is_reading_) return;
  meeting_->meet();
  is_reading_ = false;
  moved_from_.clear();
}

void CopyEngineGather::close() {
  meeting_->close();
  if (auto peers = std::exchange(peers_, nullptr)) peers->close();
}

// Opens new peer memory and moves the values of the slices there. The slices keep their storage object.
void CopyEngineGather::reopen() {
  close();
  PeerMemoryResult result = open_peer_memory(ranks_, slices_.numel());
  D9D_CHECK(result.memory != nullptr, StateError, "[parallelism::fsdp] expected ranks of group '", ranks_->group().name,
            "' to read each other's memory again after close(), got: ", result.reason,
            ". Set gather to \"communicator\".");
  const at::NoGradGuard no_grad;
  const at::Tensor own = result.memory->own();
  own.copy_(slices_);
  c10::DataPtr opened = take_storage_memory(own.storage(), "[parallelism::fsdp] its memory went to the slices");
  moved_from_ = take_storage_memory(slices_.storage(), "[parallelism::fsdp] its memory moves");
  set_storage_memory(slices_.storage(), std::move(opened));
  peers_ = std::move(result.memory);
  opened_ = slices_.const_data_ptr();
}

}  // namespace d9d
