#include "d9d/core/peer_memory/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/base/system_error.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

constexpr std::int64_t kPage = 4096;

// Returns a name that no other file has or had, made of the process id and the time.
std::string new_path() {
  return cat("/dev/shm/d9d-", ::getpid(), "-", std::chrono::steady_clock::now().time_since_epoch().count());
}

// A mapping of a file of num_bytes zeros that this process has created, or of one that another rank has created.
class Mapping {
 public:
  void create(const std::string& path, std::size_t num_bytes) {
    open(path, O_CREAT | O_EXCL);
    // Reserves the bytes, since a full file system would end the process at its first write.
    if (descriptor_ >= 0 && error_.empty()) fail_if(::posix_fallocate(descriptor_, 0, static_cast<off_t>(num_bytes)));
    map(num_bytes);
  }
  void open_existing(const std::string& path, std::size_t num_bytes) {
    open(path, 0);
    map(num_bytes);
  }
  [[nodiscard]] std::shared_ptr<SharedFile> file() const { return file_; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  void open(const std::string& path, int flags) {
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC | flags, 0600);
    if (descriptor_ < 0) error_ = cat(path, ": ", system_error_text(errno));
  }
  void fail_if(int error) {
    if (error != 0) error_ = cat("/dev/shm: ", system_error_text(error));
  }
  void map(std::size_t num_bytes) {
    if (descriptor_ < 0) return;
    if (error_.empty()) {
      void* const memory = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
      if (memory == MAP_FAILED) {
        fail_if(errno);
      } else {
        file_ = std::make_shared<SharedFile>(memory, num_bytes);
      }
    }
    ::close(descriptor_);
  }

  int descriptor_ = -1;
  std::string error_;
  std::shared_ptr<SharedFile> file_;
};

}  // namespace

SharedFile::~SharedFile() { ::munmap(memory_, num_bytes_); }

SharedFileResult open_shared_file(Communicator& ranks, std::int64_t num_bytes) {
  const auto bytes = static_cast<std::size_t>(round_up(num_bytes, kPage));
  Mapping own;
  std::string path;
  if (ranks.rank() == 0) own.create(path = new_path(), bytes);
  path = all_gather_object({{"path", path}}, ranks).front().at("path").get<std::string>();
  if (ranks.rank() != 0) own.open_existing(path, bytes);
  const auto errors = all_gather_object({{"error", own.error()}}, ranks);  // afterwards all ranks have opened the file
  if (ranks.rank() == 0) ::unlink(path.c_str());
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    const auto error = errors[rank].at("error").get<std::string>();
    if (!error.empty()) return {.file = nullptr, .reason = cat("rank ", ranks.group().ranks[rank], " gets ", error)};
  }
  return {.file = own.file(), .reason = ""};
}

}  // namespace d9d
