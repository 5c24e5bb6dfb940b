// How many cases the fuzzer draws, and from which seed.
#pragma once

#include <rapidcheck.h>

namespace d9d::test {

// The same cases each time.
[[nodiscard]] rc::detail::TestParams ci_fuzz_params();

// Those, or as RC_PARAMS in the environment says: a case for every four of max_success, as each is a training.
[[nodiscard]] rc::detail::TestParams fuzz_params();

}  // namespace d9d::test
