#include "d9d/core/communicator/process_group/closed_connections.h"

#include <csignal>

namespace d9d {

void survive_closed_connections() {
  struct sigaction now = {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace d9d
