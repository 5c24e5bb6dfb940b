#include "d9d/base/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"

namespace d9d {
namespace {

// "process 7 on node3".
std::string this_process() {
  std::array<char, 256> host = {};
  ::gethostname(host.data(), host.size() - 1);
  return cat("process ", ::getpid(), " on ", host.data());
}

std::string text_in(int descriptor) {
  std::array<char, 512> text = {};
  (void)!::pread(descriptor, text.data(), text.size() - 1, 0);
  return text.data();
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& place, std::filesystem::path lock_file)
    : path_(std::move(lock_file)) {
  while (true) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) detail::throw_system_error("to create", path_);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      const std::string holder = text_in(descriptor_);
      ::close(descriptor_);
      throw IoError(cat("[base::io] expected '", place.string(), "' to be in use by no other job, got ",
                        holder.empty()             ? "another process"
                        : holder == this_process() ? "another part of this job"
                                                   : holder,
                        " at work in it. Wait until it has ended, or choose another place."));
    }
    if (is_in_place()) break;
    ::close(descriptor_);  // the previous holder has removed the file meanwhile
  }
  const std::string self = this_process();
  (void)!::ftruncate(descriptor_, 0);
  (void)!::pwrite(descriptor_, self.data(), self.size(), 0);
}

FolderLock::~FolderLock() {
  if (is_in_place()) ::unlink(path_.c_str());
  ::close(descriptor_);
}

bool FolderLock::is_in_place() const {
  struct stat own = {}, named = {};
  return ::fstat(descriptor_, &own) == 0 && ::stat(path_.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
         own.st_dev == named.st_dev;
}

}  // namespace d9d
