#include "d9d/internals/state/main_process_state.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"

namespace d9d::main_process_state_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct SavedRun {
  std::map<std::string, at::Tensor> state;
  [[nodiscard]] std::map<std::string, at::Tensor> state_dict() const { return state; }
  void load_state_dict(const std::map<std::string, at::Tensor>& loaded) { state = loaded; }
};

std::unique_ptr<DistContext> rank_of_two(std::int64_t rank) {
  return std::make_unique<DistContext>(
      DistContextConfig{.mesh = {.data_parallel_shard = 2}, .world = test::lone_rank(rank, 2)});
}

TEST(MainProcessState, Is_saved_and_loaded_on_rank_0_alone) {
  const SavedRun saved{.state = {{"id", at::tensor(7)}}};
  const auto state = main_process_state(*rank_of_two(0), saved);
  EXPECT_EQ(state.size(), 1);
  EXPECT_EQ(state.at("main_process.id").item<int>(), 7);
  EXPECT_TRUE(main_process_state(*rank_of_two(1), saved).empty());

  SavedRun first, second;
  load_main_process_state(*rank_of_two(0), first, state);
  load_main_process_state(*rank_of_two(1), second, {});
  EXPECT_EQ(first.state.at("id").item<int>(), 7);
  EXPECT_TRUE(second.state.empty());
}

TEST(MainProcessState, Says_when_a_checkpoint_has_none) {
  SavedRun run;
  EXPECT_THAT(
      [&] {
        load_main_process_state(*rank_of_two(0), run, {{"tracker.id", at::tensor(7)}});
      },
      ThrowsMessage<StateError>(HasSubstr("begin with 'main_process.' in the state of rank 0, got none of 1")));
}

}  // namespace
}  // namespace d9d::main_process_state_test
