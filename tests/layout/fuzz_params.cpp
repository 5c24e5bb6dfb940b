#include "tests/layout/fuzz_params.h"

#include <algorithm>
#include <cstdlib>

namespace d9d::test {

rc::detail::TestParams ci_fuzz_params() {
  rc::detail::TestParams params;
  params.seed = 29;
  params.maxSuccess = 90;
  return params;
}

bool is_long_run() { return std::getenv("RC_PARAMS") != nullptr; }

rc::detail::TestParams fuzz_params() {
  if (!is_long_run()) return ci_fuzz_params();
  rc::detail::TestParams params = rc::detail::configuration().testParams;
  params.maxSuccess = std::max(1, params.maxSuccess / 4);
  return params;
}

}  // namespace d9d::test
