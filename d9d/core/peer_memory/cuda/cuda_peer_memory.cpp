#include "d9d/core/peer_memory/cuda_peer_memory.h"

#include <atomic>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/core/peer_memory/cuda_ipc.h"

namespace d9d {
namespace {

using Handle = CudaIpc::Handle;

// This rank's allocation. Freeing memory that another process has open is undefined behaviour, so it is freed only
// after all ranks have closed it, and otherwise kept until the process ends.
class Allocation {
 public:
  Allocation(const CudaIpc& cuda, int device, void* memory) : cuda_(cuda), device_(device), memory_(memory) {}
  ~Allocation() {
    if (is_closed_) (void)cuda_.free(device_, memory_);
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;

  [[nodiscard]] void* memory() const { return memory_; }
  void set_closed() { is_closed_ = true; }

 private:
  CudaIpc cuda_;
  int device_;
  void* memory_;
  std::atomic<bool> is_closed_ = false;
};

class CudaPeerMemory final : public PeerMemory {
 public:
  // addresses: by rank; the entry of this rank is its own allocation.
  CudaPeerMemory(const CudaIpc& cuda, std::shared_ptr<Communicator> ranks, std::shared_ptr<Allocation> allocation,
                 std::vector<void*> addresses, std::int64_t num_bytes)
      : cuda_(cuda),
        ranks_(std::move(ranks)),
        allocation_(std::move(allocation)),
        addresses_(std::move(addresses)),
        own_(at::from_blob(
            allocation_->memory(), {num_bytes}, [owner = allocation_](void*) mutable { owner.reset(); },
            at::TensorOptions(ranks_->device()).dtype(at::kByte), ranks_->device())) {
    own_.zero_();
  }

  [[nodiscard]] const at::Tensor& own() const override { return own_; }

  void read(const at::Tensor& target, std::int64_t rank, std::int64_t offset) const override {
    check(cuda_.copy(target.mutable_data_ptr(), address(rank, offset), target.nbytes(), stream()), "read", rank);
  }

  void write(const at::Tensor& source, std::int64_t rank, std::int64_t offset) const override {
    check(cuda_.copy(address(rank, offset), source.const_data_ptr(), source.nbytes(), stream()), "write", rank);
  }

  void raise(std::int64_t rank, std::int64_t offset, std::uint32_t value) const override {
    check(cuda_.write_word(address(rank, offset), value, stream()), "write a word of", rank);
  }

  void wait_for(std::int64_t offset, std::uint32_t value) const override {
    check(cuda_.wait_for_word(address(ranks_->rank(), offset), value, stream()), "wait for a word of", ranks_->rank());
  }

  void close() override {
    (void)all_gather_object(nullptr, *ranks_);  // the host waits, so that no read is in flight
    for (std::size_t rank = 0; rank < addresses_.size(); ++rank) {
      if (addresses_[rank] != allocation_->memory()) (void)cuda_.close(ranks_->device().index(), addresses_[rank]);
    }
    addresses_.clear();
    (void)all_gather_object(nullptr, *ranks_);  // after this all ranks have closed
    allocation_->set_closed();
    allocation_.reset();  // freed together with the storage of own()
  }

 private:
  [[nodiscard]] CUstream_st* stream() const { return current_cuda_stream(ranks_->device()); }
  [[nodiscard]] char* address(std::int64_t rank, std::int64_t offset) const {
    D9D_CHECK(!addresses_.empty(), StateError, "[core::peer_memory] expected a call before close(), got one after it.");
    return static_cast<char*>(addresses_[static_cast<std::size_t>(rank)]) + offset;
  }
  void check(const char* error, const char* what, std::int64_t rank) const {
    D9D_CHECK(error == nullptr, StateError, "[core::peer_memory] expected CUDA to ", what, " the block of rank ",
              ranks_->group().ranks[static_cast<std::size_t>(rank)], ", got its error: ", error,
              ". Has that rank ended?");
  }

  CudaIpc cuda_;
  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<Allocation> allocation_;
  std::vector<void*> addresses_;
  at::Tensor own_;
};

// The values of all ranks, or the first error as "CUDA of rank 3: ...".
struct Answers {
  std::vector<nlohmann::json> values;
  std::string error;
};

Answers ask_all(Communicator& ranks, const nlohmann::json& value, const char* error) {
  const nlohmann::json text = error == nullptr ? nlohmann::json() : nlohmann::json(error);
  Answers result;
  for (const nlohmann::json& answer : all_gather_object({{"value", value}, {"error", text}}, ranks)) {
    const auto rank = ranks.group().ranks[result.values.size()];
    result.values.push_back(answer.at("value"));
    if (result.error.empty() && answer.at("error").is_string()) {
      result.error = cat("CUDA of rank ", rank, " refuses: ", answer.at("error").get<std::string>());
    }
  }
  return result;
}

}  // namespace

PeerMemoryResult open_cuda_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes) {
  const CudaIpc cuda = reinterpret_cast<GetCudaIpc>(cuda_library_symbol("d9d_cuda_ipc"))();
  const int device = ranks->device().index();
  void* memory = nullptr;
  Handle handle{};
  const char* error = cuda.allocate(device, static_cast<std::size_t>(num_bytes), &memory, &handle);
  const Answers handles = ask_all(*ranks, handle, error);
  if (!handles.error.empty()) {
    if (error == nullptr) (void)cuda.free(device, memory);
    return {.memory = nullptr, .reason = handles.error};
  }

  std::vector<void*> addresses;
  for (std::int64_t rank = 0; rank < ranks->size(); ++rank) {
    void* address = rank == ranks->rank() ? memory : nullptr;
    if (rank != ranks->rank() && error == nullptr) {
      error = cuda.open(device, handles.values[static_cast<std::size_t>(rank)].get<Handle>(), &address);
    }
    addresses.push_back(address);
  }
  // Sets its block to zeros, which all ranks see once all have answered.
  auto result = std::make_shared<CudaPeerMemory>(cuda, ranks, std::make_shared<Allocation>(cuda, device, memory),
                                                 std::move(addresses), num_bytes);
  const Answers opened = ask_all(*ranks, nullptr, error);
  if (opened.error.empty()) return {.memory = std::move(result), .reason = ""};
  result->close();
  return {.memory = nullptr, .reason = opened.error};
}

}  // namespace d9d
