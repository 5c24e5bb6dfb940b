// Random models, losses and layouts: every layout must train as one rank does.
#include <iostream>
#include <stdexcept>

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"

#include "tests/layout/draw.h"
#include "tests/layout/fuzz_params.h"
#include "tests/layout/layout_case.h"

namespace d9d::test::layout_fuzz_test {
namespace {

void check_layouts(const rc::detail::TestParams& params) {
  const auto property = [] {
    const LayoutCase drawn = draw_case();
    const std::string fault = fault_of(drawn);
    if (!fault.empty()) throw std::runtime_error(cat("LayoutCase", to_source(drawn), "\n", fault));
  };
  const auto result = rc::detail::checkTestable(property, rc::detail::TestMetadata{}, params);
  if (result.is<rc::detail::SuccessResult>()) return;
  rc::detail::FailureResult failure;
  if (result.match(failure)) {
    ADD_FAILURE() << "after " << failure.numSuccess << " cases of seed " << params.seed << ", and "
                  << failure.reproduce.shrinkPath.size() << " shrinks:\n"
                  << failure.description;
  } else {
    rc::detail::printResultMessage(result, std::cerr);
    ADD_FAILURE() << "the cases cannot be drawn";
  }
}

TEST(LayoutFuzz, Any_layout_trains_as_one_rank_does) { check_layouts(fuzz_params()); }

}  // namespace
}  // namespace d9d::test::layout_fuzz_test
