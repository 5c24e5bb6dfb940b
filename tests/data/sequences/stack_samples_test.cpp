#include "d9d/data/sequences/stack_samples.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::stack_samples_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Pair {
  at::Tensor x;
  at::Tensor y;
  static constexpr auto fields() { return record<Pair>(field("x", &Pair::x), field("y", &Pair::y)); }
};

struct Scene {
  Pair points;
  std::map<std::string, at::Tensor> labels;
  std::optional<at::Tensor> mask;
  static constexpr auto fields() {
    return record<Scene>(field("points", &Scene::points), field("labels", &Scene::labels), field("mask", &Scene::mask));
  }
};

Pair pair(float value, std::int64_t label) {
  return {.x = at::full({2, 3}, value), .y = at::scalar_tensor(label, at::kLong)};
}

Scene scene(float value, std::int64_t label) {
  return {
      .points = pair(value, label), .labels = {{"b", at::full({1}, value)}, {"a", at::full({2}, -value)}}, .mask = {}};
}

Pair stack(const std::vector<Pair>& samples) { return stack_samples<Pair>(samples); }

TEST(StackSamples, Gives_each_tensor_a_first_dimension_of_samples) {
  const Pair batch = stack({pair(1, 7), pair(2, 8), pair(3, 9)});
  EXPECT_TRUE(at::equal(batch.x, at::tensor({1.0F, 2.0F, 3.0F}).view({3, 1, 1}).expand({3, 2, 3})));
  EXPECT_TRUE(at::equal(batch.y, at::tensor({7, 8, 9}, at::kLong)));
  EXPECT_EQ(batch.y.scalar_type(), at::kLong);
}

TEST(StackSamples, Keeps_the_structure_of_nested_samples) {
  const std::vector<Scene> samples = {scene(1, 4), scene(2, 5)};
  const Scene batch = stack_samples<Scene>(samples);
  EXPECT_TRUE(at::equal(batch.points.y, at::tensor({4, 5}, at::kLong)));
  EXPECT_TRUE(at::equal(batch.labels.at("a"), at::tensor({-1.0F, -1.0F, -2.0F, -2.0F}).view({2, 2})));
  EXPECT_TRUE(at::equal(batch.labels.at("b"), at::tensor({1.0F, 2.0F}).view({2, 1})));
  EXPECT_FALSE(batch.mask.has_value());
}

TEST(StackSamples, Refuses_what_differs_and_names_tensor_and_sample) {
  std::vector<Pair> samples = {pair(1, 7), pair(2, 8), pair(3, 9)};
  samples[2].x = at::ones({2, 4});
  EXPECT_THAT([&] { stack(samples); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("expected x to be Float [2, 3]"),
                                               HasSubstr("got Float [2, 4] in sample 2 of the batch"))));
  samples[2].x = at::ones({2, 3}, at::kDouble);
  EXPECT_THAT([&] { stack(samples); }, ThrowsMessage<ConfigError>(HasSubstr("got Double [2, 3] in sample 2")));
  samples[1].y = at::Tensor();
  samples[2].x = samples[1].x;
  EXPECT_THAT([&] { stack(samples); }, ThrowsMessage<ConfigError>(HasSubstr("values in y, got none in sample 1")));
  EXPECT_THAT([] { stack({}); }, ThrowsMessage<ConfigError>(HasSubstr("Cannot stack 0 samples")));

  std::vector<Scene> scenes = {scene(1, 4), scene(2, 5)};
  scenes[1].labels.erase("b");
  EXPECT_THAT([&] { (void)stack_samples<Scene>(scenes); }, ThrowsMessage<StateError>(HasSubstr("labels")));
}

}  // namespace
}  // namespace d9d::stack_samples_test
