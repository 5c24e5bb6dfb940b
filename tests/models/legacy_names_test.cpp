#include "d9d/models/legacy_names.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/model_state/load_model_state.h"

#include "tests/support/io_faults.h"

namespace d9d::legacy_names_test {
namespace {
using State = std::map<std::string, at::Tensor>;

struct Heads : Module {
  explicit Heads(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      register_module(name.substr(0, name.find('.')), make_module<Leaf>(name.substr(name.find('.') + 1)));
  }
  struct Leaf : Module {
    explicit Leaf(const std::string& name) {
      const auto dot = name.find('.');
      if (dot == std::string::npos) {
        register_parameter(name, {.shape = {1}, .init = init::zeros()});
      } else {
        register_module(name.substr(0, dot), make_module<Leaf>(name.substr(dot + 1)));
      }
    }
  };
};

// The values of a module with one parameter of each name, loaded from `state`.
State loaded(const std::string& name, const State& state, const std::string& head_prefix = "head.") {
  const auto model = make_module<Heads>(std::vector{name});
  model->materialize(at::kCPU);
  const NamedTensors tensors = tensors_of(state);
  (void)load_model_state(*model, own_names(*model, tensors.names, head_prefix), tensors);
  return model->state_dict();
}

TEST(FormerNames, Of_all_three_heads_load_under_the_present_names) {
  const State former = {{"lm_head.lm_head.regular.weight", at::full({1}, 1.0)},
                        {"cls_head.score.weight", at::full({1}, 2.0)},
                        {"embedding_head.projection.weight", at::full({1}, 3.0)},
                        {"model.norm.weight", at::full({1}, 4.0)}};
  int expected = 1;
  for (const std::string name :
       {"head.lm_head.regular.weight", "head.score.weight", "head.projection.weight", "model.norm.weight"}) {
    EXPECT_EQ(loaded(name, former).at(name).item<float>(), expected++);
  }
}

TEST(FormerNames, Give_way_to_present_ones) {
  const State both = {{"heads.a.score.weight", at::full({1}, 1.0)}, {"cls_head.score.weight", at::full({1}, 2.0)}};
  EXPECT_EQ(loaded("heads.a.score.weight", both, "heads.a.").at("heads.a.score.weight").item<float>(), 1);
}

TEST(FormerNames, Do_not_hide_that_a_tensor_is_missing) {
  EXPECT_THAT(test::message_of<StateError>([] { (void)loaded("head.score.weight", {}); }),
              ::testing::HasSubstr("'head.score.weight'"));
}

}  // namespace
}  // namespace d9d::legacy_names_test
