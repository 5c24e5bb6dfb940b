// TCP sockets with which ranks meet (rendezvous.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace d9d {

// A listening socket. Owns its descriptor until release().
class ListeningSocket {
 public:
  enum class Reach { kThisMachine, kAllMachines };

  // Port 0: the system chooses a free port. Throws IoError whose text is only the system's reason: "Address already in
  // use".
  ListeningSocket(std::uint16_t port, Reach reach);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] int release();

 private:
  int descriptor_ = -1;
  std::uint16_t port_ = 0;
};

// Retries until a socket listens at host:port; calls `between` between attempts. Returns the address of this machine
// that the connection uses. At the deadline throws CommunicationError, whose text is only the system's last reason:
// "Connection refused".
[[nodiscard]] std::string wait_for_listener(
    const std::string& host, std::uint16_t port, std::chrono::steady_clock::time_point deadline,
    const std::function<void()>& between = [] {});

}  // namespace d9d
