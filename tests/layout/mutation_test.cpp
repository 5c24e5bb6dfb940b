// The fuzzer must detect planted faults: for each fault one of the cases of continuous integration fails.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"

#include "tests/layout/draw.h"
#include "tests/layout/fuzz_params.h"
#include "tests/layout/layout_case.h"
#include "tests/support/turns.h"

namespace d9d::test::mutation_test {
namespace {

class Mutations : public ::testing::TestWithParam<Mutation> {};
INSTANTIATE_TEST_SUITE_P(Of, Mutations, ::testing::ValuesIn(in_turn(all_mutations(), 3)),
                         [](const auto& mutation) { return name_of(mutation.param); });

TEST_P(Mutations, Are_found_by_the_cases_of_continuous_integration) {
  rc::detail::TestParams params = ci_fuzz_params();
  params.disableShrinking = true;
  int num_draws = 0;
  std::string found;
  const auto property = [&] {
    const LayoutCase drawn = draw_case();
    ++num_draws;
    if (!can_show(GetParam(), drawn)) return;
    std::string fault;
    try {
      fault = fault_of(drawn, GetParam());
      // The library itself reports the fault here; another case must show wrong numbers.
    } catch (const std::exception&) {
    }
    if (fault.empty()) return;
    found = cat(to_source(drawn), "\n", fault.substr(0, fault.find('\n')));
    RC_FAIL("found");
  };
  (void)rc::detail::checkTestable(property, rc::detail::TestMetadata{}, params);
  EXPECT_FALSE(found.empty()) << "no case shows that " << describe(GetParam());
  std::cout << describe(GetParam()) << ": found by draw " << num_draws << ", " << found << std::endl;
}

}  // namespace
}  // namespace d9d::test::mutation_test
