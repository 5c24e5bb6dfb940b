// The number of cases that the fuzzer draws, and its seed.
#pragma once

#include <rapidcheck.h>

namespace d9d::test {

// Draws the same cases in each run.
[[nodiscard]] rc::detail::TestParams ci_fuzz_params();

// Whether RC_PARAMS is in the environment.
[[nodiscard]] bool is_long_run();

// The cases of ci_fuzz_params(), or the values of RC_PARAMS; every four of its max_success give one case, because each
// case trains a model.
[[nodiscard]] rc::detail::TestParams fuzz_params();

}  // namespace d9d::test
