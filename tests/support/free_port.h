// A port for a rendezvous of other processes, as a launcher assigns one.
#pragma once

#include <unistd.h>

#include <cstdint>

#include "d9d/base/check.h"
#include "d9d/core/launch/tcp.h"

namespace d9d::test {

// Below the ports that Linux gives to sockets which ask for any: no connection takes it before its listener does. Tests
// at the same time begin their search elsewhere.
[[nodiscard]] inline std::uint16_t free_port() {
  constexpr std::uint16_t kFirst = 10000, kNum = 20000;
  static std::uint32_t next = static_cast<std::uint32_t>(::getpid()) * 31;
  for (int attempt = 0;; ++attempt) {
    const auto port = static_cast<std::uint16_t>(kFirst + next++ % kNum);
    try {
      return ListeningSocket(port, ListeningSocket::Reach::kAllMachines).port();
    } catch (const IoError&) {
      if (attempt == 100) throw;
    }
  }
}

}  // namespace d9d::test
