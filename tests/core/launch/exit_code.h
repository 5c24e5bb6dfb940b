// Ends a test program as launch() would.
#pragma once

#include <functional>

#include "d9d/core/launch/launch.h"

namespace d9d::test {

[[nodiscard]] inline int exit_code_of(const std::function<int()>& body) {
  int exit_code = 0;
  const int error_code = run_reporting_errors([&] { exit_code = body(); });
  return error_code != 0 ? error_code : exit_code;
}

}  // namespace d9d::test
