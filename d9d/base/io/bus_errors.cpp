#include "d9d/base/io/bus_errors.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace d9d {

namespace {

// The functions below run in a signal handler, so they use only system calls and the stack.

// The characters of a file, one after the other.
class Characters {
 public:
  explicit Characters(const char* path) : descriptor_(::open(path, O_RDONLY | O_CLOEXEC)) {}
  ~Characters() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Characters(const Characters&) = delete;
  Characters& operator=(const Characters&) = delete;

  // 0 at the end.
  char next() {
    if (position_ == size_) {
      const ssize_t count = descriptor_ < 0 ? 0 : ::read(descriptor_, buffer_.data(), buffer_.size());
      size_ = count > 0 ? static_cast<std::size_t>(count) : 0;
      position_ = 0;
    }
    return size_ == 0 ? '\0' : buffer_[position_++];
  }

 private:
  int descriptor_;
  std::array<char, 1024> buffer_ = {};
  std::size_t position_ = 0;
  std::size_t size_ = 0;
};

// A hexadecimal number and the character after it.
std::uintptr_t read_number(Characters& characters, char& end) {
  std::uintptr_t number = 0;
  for (end = characters.next();; end = characters.next()) {
    if (end >= '0' && end <= '9') {
      number = number * 16 + static_cast<std::uintptr_t>(end - '0');
    } else if (end >= 'a' && end <= 'f') {
      number = number * 16 + static_cast<std::uintptr_t>(end - 'a' + 10);
    } else {
      return number;
    }
  }
}

// The path of the file that is mapped at an address, from lines of "begin-end rights offset device inode   path".
std::string_view path_at(std::uintptr_t address, std::array<char, 4096>& path) {
  Characters maps("/proc/self/maps");
  while (true) {
    char c = '\0';
    const std::uintptr_t begin = read_number(maps, c);
    if (c != '-') return {};
    const std::uintptr_t end = read_number(maps, c);
    std::size_t size = 0;
    bool is_path = false;
    for (; c != '\n' && c != '\0'; c = maps.next()) {
      is_path |= c == '/';
      if (is_path && size < path.size()) path[size++] = c;
    }
    if (begin <= address && address < end) return {path.data(), size};
    if (c == '\0') return {};
  }
}

void print(std::string_view text) { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

void on_bus_error(int signal_number, siginfo_t* info, void* /*context*/) {
  static std::atomic_flag has_begun;           // lint: allow(mutable-global): of the process, which this signal ends
  while (has_begun.test_and_set()) ::pause();  // another thread reports it
  std::array<char, 4096> memory;
  const std::string_view path = path_at(reinterpret_cast<std::uintptr_t>(info->si_addr), memory);
  if (path.empty() || info->si_code <= 0) {  // someone sent the signal
    ::signal(signal_number, SIG_DFL);
    return;
  }
  print("error: [base::io] expected to read '");
  print(path);
  if (path.starts_with("/dev/shm/")) {
    print("', got no memory for it (SIGBUS). Is /dev/shm full?\n");
  } else {
    print(
        "', got a file that became shorter, or an error of its disk (SIGBUS). Do not write files that a job reads.\n");
  }
  ::signal(signal_number, SIG_DFL);  // what could not be read is read again when this returns, and ends the process
}

}  // namespace

void explain_bus_errors() {
  struct sigaction found {};
  if (::sigaction(SIGBUS, nullptr, &found) != 0 || found.sa_handler != SIG_DFL) return;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace d9d
