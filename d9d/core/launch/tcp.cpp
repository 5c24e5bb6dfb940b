#include "d9d/core/launch/tcp.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/system_error.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return value_; }
  [[nodiscard]] int release() { return std::exchange(value_, -1); }

 private:
  int value_;
};

// Returns why this address cannot be reached now; empty if it can be reached.
std::string connect_reason(const addrinfo& address, Clock::time_point deadline, std::string& own_address) {
  const Descriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return system_error_text(errno);
  if (::connect(socket.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return system_error_text(errno);
    pollfd waiting{.fd = socket.get(), .events = POLLOUT, .revents = 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (::poll(&waiting, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 2000))) != 1)
      return system_error_text(ETIMEDOUT);
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return system_error_text(error);
  }
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  char text[NI_MAXHOST] = "";
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size);
  ::getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  own_address = text;
  return {};
}

}  // namespace

ListeningSocket::ListeningSocket(std::uint16_t port, Reach reach) {
  Descriptor socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool has_ipv6 = socket.get() >= 0 && reach == Reach::kAllMachines;
  Descriptor ipv4(has_ipv6 ? -1 : ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int descriptor = has_ipv6 ? socket.get() : ipv4.get();
  if (descriptor < 0) throw IoError(system_error_text(errno));
  const int on = 1;
  const int off = 0;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  int status = 0;
  if (has_ipv6) {  // accepts IPv4 too
    ::setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    sockaddr_in6 address{.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    status = ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  } else {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(reach == Reach::kThisMachine ? INADDR_LOOPBACK : INADDR_ANY);
    status = ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  if (status != 0 || ::listen(descriptor, SOMAXCONN) != 0) throw IoError(system_error_text(errno));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  ::getsockname(descriptor, reinterpret_cast<sockaddr*>(&bound), &size);
  port_ = ntohs(has_ipv6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                         : reinterpret_cast<sockaddr_in&>(bound).sin_port);
  descriptor_ = has_ipv6 ? socket.release() : ipv4.release();
}

ListeningSocket::~ListeningSocket() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

int ListeningSocket::release() { return std::exchange(descriptor_, -1); }

std::string wait_for_listener(const std::string& host, std::uint16_t port, Clock::time_point deadline,
                              const std::function<void()>& between) {
  const addrinfo hints{.ai_flags = AI_ADDRCONFIG, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  while (true) {
    std::string reason;
    addrinfo* found = nullptr;
    const int status = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (status != 0) reason = ::gai_strerror(status);
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, [](addrinfo* list) {
      if (list != nullptr) ::freeaddrinfo(list);
    });
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      std::string own_address;
      reason = connect_reason(*address, deadline, own_address);
      if (reason.empty()) return own_address;
    }
    if (Clock::now() >= deadline) throw CommunicationError(reason);
    between();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace d9d
