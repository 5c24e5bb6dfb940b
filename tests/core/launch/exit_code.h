// How a test program ends, as launch() would.
#pragma once

#include <functional>

#include "d9d/base/check.h"
#include "d9d/base/log.h"
#include "d9d/core/communicator/process_group/peer_failed_error.h"
#include "d9d/core/launch/child_processes.h"

namespace d9d::test {

[[nodiscard]] inline int exit_code_of(const std::function<int()>& body) {
  try {
    return body();
  } catch (const PeerFailedError&) {
    return kPeerFailedExitCode;
  } catch (const std::exception& error) {
    write_line_to_stderr(cat("error: ", error.what()));
    return 1;
  }
}

}  // namespace d9d::test
