#include "d9d/core/peer_memory/cuda_peer_memory.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/cuda_library.h"
#include "d9d/core/device/cuda_stream.h"
#include "d9d/core/peer_memory/cuda_ipc.h"
#include "d9d/core/peer_memory/shared_file.h"

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

// Host memory that all ranks share: the words of streams, followed by one word per rank that says whether it has left.
class SharedWords {
 public:
  // error: receives null, or CUDA's error, after which nothing but the destructor may be called.
  SharedWords(const CudaIpc& cuda, int device, std::shared_ptr<SharedFile> file, std::int64_t num_bytes,
              std::int64_t num_ranks, const char** error)
      : cuda_(cuda), device_(device), file_(std::move(file)), left_(end_of(num_bytes)), num_ranks_(num_ranks) {
    *error = cuda_.register_host(device_, file_->data(), file_->num_bytes(), &address_);
  }
  ~SharedWords() {
    if (address_ != nullptr) (void)cuda_.unregister_host(device_, file_->data());
  }
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  [[nodiscard]] static std::int64_t bytes_of(std::int64_t num_bytes, std::int64_t num_ranks) {
    return end_of(num_bytes) + num_ranks * kWordBytes;
  }
  [[nodiscard]] std::byte* data() const { return file_->data(); }
  [[nodiscard]] void* on_device(std::int64_t word) const { return static_cast<char*>(address_) + word; }
  [[nodiscard]] std::atomic_ref<std::uint32_t> on_host(std::int64_t word) const {
    return std::atomic_ref(*reinterpret_cast<std::uint32_t*>(file_->data() + word));
  }
  void set_left(std::int64_t rank) const { on_host(left_ + rank * kWordBytes).store(1, std::memory_order_release); }
  [[nodiscard]] bool have_all_left() const {
    for (std::int64_t rank = 0; rank < num_ranks_; ++rank) {
      if (on_host(left_ + rank * kWordBytes).load(std::memory_order_acquire) == 0) return false;
    }
    return true;
  }

 private:
  static constexpr std::int64_t kWordBytes = 4;
  [[nodiscard]] static std::int64_t end_of(std::int64_t num_bytes) { return round_up(num_bytes, kWordBytes); }

  CudaIpc cuda_;
  int device_;
  std::shared_ptr<SharedFile> file_;
  std::int64_t left_;  // offset of the words that say which ranks have left
  std::int64_t num_ranks_;
  void* address_ = nullptr;
};

// A block that other ranks may still have open although its owner has left or dropped it.
struct LeftBlock {
  std::shared_ptr<Allocation> allocation;
  std::shared_ptr<SharedWords> words;
};

// Keeps the block, and frees those that all ranks have left.
void keep_until_all_have_left(std::optional<LeftBlock> block) {
  static std::mutex mutex;  // lint: allow(mutable-global): guards `blocks`
  // lint: allow(mutable-global): other processes have memory of this one open. Not destroyed: CUDA is gone before.
  static auto& blocks = *new std::vector<LeftBlock>;
  const std::lock_guard lock(mutex);
  if (block) blocks.push_back(std::move(*block));
  std::erase_if(blocks, [](const LeftBlock& left) {
    if (!left.words->have_all_left()) return false;
    left.allocation->set_closed();
    return true;
  });
}

class CudaPeerMemory final : public PeerMemory {
 public:
  // addresses: of the blocks, by rank; this rank's entry is its own allocation. words: null if no bytes are shared.
  CudaPeerMemory(const CudaIpc& cuda, std::shared_ptr<Communicator> ranks, std::shared_ptr<Allocation> allocation,
                 std::vector<void*> addresses, std::shared_ptr<SharedWords> words, std::int64_t num_bytes)
      : cuda_(cuda),
        ranks_(std::move(ranks)),
        allocation_(std::move(allocation)),
        addresses_(std::move(addresses)),
        words_(std::move(words)),
        own_(at::from_blob(
            allocation_->memory(), {num_bytes}, [owner = allocation_](void*) mutable { owner.reset(); },
            at::TensorOptions(ranks_->device()).dtype(at::kByte), ranks_->device())) {
    own_.zero_();
  }
  // If this rank fails, streams may still use the words, so the block is kept until all ranks have left.
  ~CudaPeerMemory() override {
    if (!addresses_.empty() && words_ != nullptr) {
      keep_until_all_have_left(LeftBlock{.allocation = allocation_, .words = words_});
    }
  }

  [[nodiscard]] const at::Tensor& own() const override { return own_; }

  void read(const at::Tensor& target, std::int64_t rank, std::int64_t offset) const override {
    check(cuda_.copy(target.mutable_data_ptr(), address(rank, offset), target.nbytes(), stream()), "read", rank);
  }

  void write(const at::Tensor& source, std::int64_t rank, std::int64_t offset) const override {
    check(cuda_.copy(address(rank, offset), source.const_data_ptr(), source.nbytes(), stream()), "write", rank);
  }

  [[nodiscard]] std::byte* shared() const override { return words().data(); }

  void raise(std::int64_t word, std::uint32_t value) const override {
    check(cuda_.write_word(words().on_device(word), value, stream()), "write a word beside", ranks_->rank());
  }

  void raise_at_once(std::int64_t word, std::uint32_t value) const override {
    words().on_host(word).store(value, std::memory_order_release);
  }

  void wait_for(std::int64_t word, std::uint32_t value) const override {
    check(cuda_.wait_for_word(words().on_device(word), value, stream()), "wait for a word beside", ranks_->rank());
  }

  [[nodiscard]] bool is_raised(std::int64_t word, std::uint32_t value) const override {
    return static_cast<std::int32_t>(words().on_host(word).load(std::memory_order_acquire) - value) >= 0;
  }

  void close() override {
    (void)all_gather_object(nullptr, *ranks_);  // the host waits, so that no read is in flight
    close_others();
    (void)all_gather_object(nullptr, *ranks_);  // afterwards all ranks have closed
    allocation_->set_closed();
    allocation_.reset();  // freed together with the storage of own()
  }

  void leave() override {
    if (addresses_.empty()) return;
    close_others();
    words().set_left(ranks_->rank());
    keep_until_all_have_left(LeftBlock{.allocation = std::move(allocation_), .words = words_});
  }

 private:
  [[nodiscard]] CUstream_st* stream() const { return current_cuda_stream(ranks_->device()); }
  [[nodiscard]] char* address(std::int64_t rank, std::int64_t offset) const {
    D9D_CHECK(!addresses_.empty(), StateError, "[core::peer_memory] expected a call before close(), got one after it.");
    return static_cast<char*>(addresses_[static_cast<std::size_t>(rank)]) + offset;
  }
  [[nodiscard]] SharedWords& words() const {
    D9D_ASSERT(words_ != nullptr, "[core::peer_memory] opened without shared bytes");
    return *words_;
  }
  void close_others() {
    for (void* const address : addresses_) {
      if (address != allocation_->memory()) (void)cuda_.close(ranks_->device().index(), address);
    }
    addresses_.clear();
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
  std::shared_ptr<SharedWords> words_;
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

PeerMemoryResult open_cuda_peer_memory(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes,
                                       std::int64_t num_shared_bytes) {
  if (!is_built_with_cuda()) return {.memory = nullptr, .reason = "this build has no CUDA"};
  keep_until_all_have_left(std::nullopt);
  const CudaIpc cuda = cuda_ipc();
  const int device = ranks->device().index();
  SharedFileResult shared;
  if (num_shared_bytes > 0) {
    shared = open_shared_file(*ranks, SharedWords::bytes_of(num_shared_bytes, ranks->size()));
    if (shared.file == nullptr) return {.memory = nullptr, .reason = shared.reason};
  }

  void* memory = nullptr;
  Handle handle{};
  const char* error = cuda.allocate(device, static_cast<std::size_t>(num_bytes), &memory, &handle);
  const Answers handles = ask_all(*ranks, handle, error);
  if (!handles.error.empty()) {
    if (error == nullptr) (void)cuda.free(device, memory);
    return {.memory = nullptr, .reason = handles.error};
  }

  std::shared_ptr<SharedWords> words;
  if (shared.file != nullptr) {
    words =
        std::make_shared<SharedWords>(cuda, device, std::move(shared.file), num_shared_bytes, ranks->size(), &error);
  }
  std::vector<void*> addresses;
  for (std::int64_t rank = 0; rank < ranks->size(); ++rank) {
    void* address = rank == ranks->rank() ? memory : nullptr;
    if (rank != ranks->rank() && error == nullptr) {
      error = cuda.open(device, handles.values[static_cast<std::size_t>(rank)].get<Handle>(), &address);
    }
    addresses.push_back(address);
  }
  // The constructor sets the block to zeros; all ranks see them once all have answered.
  auto result = std::make_shared<CudaPeerMemory>(cuda, ranks, std::make_shared<Allocation>(cuda, device, memory),
                                                 std::move(addresses), std::move(words), num_bytes);
  const Answers opened = ask_all(*ranks, nullptr, error);
  if (opened.error.empty()) return {.memory = std::move(result), .reason = ""};
  result->close();
  return {.memory = nullptr, .reason = opened.error};
}

}  // namespace d9d
