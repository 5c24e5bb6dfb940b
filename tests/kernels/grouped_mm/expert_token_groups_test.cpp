#include "d9d/kernels/grouped_mm/expert_token_groups.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "d9d/base/check.h"

namespace d9d::kernels::expert_token_groups_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ExpertTokenGroups, Turns_counts_into_int32_offsets_with_a_leading_zero) {
  const auto groups = ExpertTokenGroups::from_counts(at::tensor({3, 0, 5}, at::kLong));
  EXPECT_TRUE(at::equal(groups.offsets(), at::tensor({0, 3, 3, 8}, at::kInt)));
  EXPECT_TRUE(at::equal(groups.counts(), at::tensor({3, 0, 5}, at::kInt)));
  EXPECT_EQ(groups.num_groups(), 3);
  EXPECT_THAT(groups.host_counts(), ElementsAre(3, 0, 5));
}

TEST(ExpertTokenGroups, May_be_empty) {
  const auto groups = ExpertTokenGroups::from_counts(at::empty({0}, at::kLong));
  EXPECT_EQ(groups.num_groups(), 0);
  EXPECT_THAT(groups.host_counts(), IsEmpty());
}

// The tensor is changed without the object's knowledge, which shows whether it is read again.
TEST(ExpertTokenGroups, Copies_to_the_host_once_for_all_copies_of_the_value) {
  auto offsets = at::tensor({0, 1, 4}, at::kInt);
  const ExpertTokenGroups groups(offsets);
  const ExpertTokenGroups copy = groups;
  EXPECT_THAT(groups.host_counts(), ElementsAre(1, 3));
  offsets.zero_();
  EXPECT_THAT(copy.host_counts(), ElementsAre(1, 3));
}

TEST(ExpertTokenGroups, Takes_counts_that_the_host_knows_without_reading_the_offsets) {
  const ExpertTokenGroups groups(at::zeros({3}, at::kInt), {2, 7});
  EXPECT_THAT(groups.host_counts(), ElementsAre(2, 7));
}

TEST(ExpertTokenGroups, Rejects_offsets_of_another_dtype_and_counts_of_another_size) {
  EXPECT_THROW(ExpertTokenGroups(at::zeros({3}, at::kLong)), ConfigError);
  EXPECT_THROW(ExpertTokenGroups(at::zeros({0}, at::kInt)), ConfigError);
  EXPECT_THROW(ExpertTokenGroups(at::zeros({3}, at::kInt), {2}), ConfigError);
  EXPECT_THROW((void)ExpertTokenGroups::from_counts(at::zeros({2, 2}, at::kLong)), ConfigError);
}

}  // namespace
}  // namespace d9d::kernels::expert_token_groups_test
