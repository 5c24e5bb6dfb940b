// Failing filesystems, for tests of error paths. They work for root too, and leave nothing behind.
#pragma once

#include <sched.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <functional>
#include <thread>

#include <gtest/gtest.h>

namespace d9d::test {

// A new empty folder within the test's temporary folder.
inline std::filesystem::path fresh_directory(std::string_view name) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path path =
      std::filesystem::path(::testing::TempDir()) / "d9d" / test->test_suite_name() / test->name() / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

// While it lives, no file of this process may grow beyond `bytes`: write() fails with EFBIG.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &old_limit_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = old_limit_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &old_limit_);
    std::signal(SIGXFSZ, old_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*old_handler_)(int);
  rlimit old_limit_{};
};

// Runs body(folder) on a thread that sees a disk of 64 KiB at `folder`; other threads do not see it. False if the
// system forbids mounting.
[[nodiscard]] inline bool run_on_small_disk(const std::filesystem::path& folder, const std::function<void()>& body) {
  bool mounted = false;
  std::thread([&] {
    mounted = ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
    if (mounted) body();
  }).join();
  return mounted;
}

// Runs body on a thread without root's permission to write everywhere.
inline void run_unprivileged(const std::function<void()>& body) {
  std::thread([&] {
    if (::geteuid() == 0) ::setfsuid(65534);
    body();
  }).join();
}

// Runs body, which must throw Error, and returns the text of the error.
template <class Error>
[[nodiscard]] std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace d9d::test
