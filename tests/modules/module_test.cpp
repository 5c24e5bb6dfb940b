#include "d9d/modules/module.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::module_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

class Scale : public Module {
 public:
  explicit Scale(std::int64_t size)
      : weight(register_parameter("weight", {.shape = {size}, .init = init::normal(1.0)})),
        counter(register_buffer("counter", {.shape = {1}, .init = init::zeros(), .is_persistent = false})) {}
  at::Tensor forward(const at::Tensor& x) {
    if (!is_recomputing()) counter->local.add_(1);
    return at::tanh(x * weight->local());
  }
  const ParameterPtr weight;
  const BufferPtr counter;
};

class Twice : public Module {
 public:
  Twice() : first(register_module<Scale>("first", 3)), second(register_module<Scale>("second", 3)) {}
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  const ModulePtr<Scale> first;
  const ModulePtr<Scale> second;
};

ModulePtr<Twice> ready_module(std::uint64_t seed = 1) {
  auto model = make_module<Twice>();
  model->materialize(at::kCPU);
  model->reset_parameters(seed);
  return model;
}

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> result;
  for (const auto& [name, parameter] : module.named_parameters()) result.push_back(name);
  return result;
}

TEST(Module, Lists_parameters_by_dotted_path_in_registration_order) {
  EXPECT_THAT(names(Twice()), ElementsAre("first.weight", "second.weight"));
}

TEST(Module, Of_two_names_has_the_first_as_its_parameters_do) {
  struct Aliased : Module {
    const ModulePtr<Scale> first = register_module<Scale>("first", 3);
    const ModulePtr<Scale> alias = register_module("alias", first);
  };
  auto model = make_module<Aliased>();
  model->materialize(at::kCPU);
  model->reset_parameters(1);
  EXPECT_EQ(model->first->canonical_name(), "first");
  EXPECT_THAT(names(*model), ElementsAre("first.weight"));
}

TEST(Module, State_dict_has_persistent_tensors_only) {
  const auto model = ready_module();
  EXPECT_THAT(model->state_dict(),
              ElementsAre(Pair("first.weight", ::testing::_), Pair("second.weight", ::testing::_)));
}

TEST(Module, Construction_allocates_nothing) {
  const auto model = make_module<Twice>();
  for (const auto& [name, parameter] : model->named_parameters()) EXPECT_TRUE(parameter->local().is_meta()) << name;
  EXPECT_EQ(model->full_state_dict().size(), model->state_dict().size());
}

TEST(Module, Values_depend_on_seed_and_name_alone) {
  const auto model = ready_module(1);
  EXPECT_TRUE(at::equal(model->first->weight->local(), ready_module(1)->first->weight->local()));
  EXPECT_FALSE(at::equal(model->first->weight->local(), ready_module(2)->first->weight->local()));
  EXPECT_FALSE(at::equal(model->first->weight->local(), model->second->weight->local()));
}

TEST(Module, Names_everything_without_values) {
  const auto model = make_module<Twice>();
  model->materialize(at::kCPU);
  EXPECT_THAT([&] { model->check_initialized(); },
              ThrowsMessage<StateError>(HasSubstr("{first.weight, second.weight, first.counter, second.counter}")));
  model->reset_parameters(1);
  EXPECT_NO_THROW(model->check_initialized());
}

TEST(Module, Without_memory_names_the_parameter_and_the_size_of_all) {
  static constexpr std::int64_t kMoreThanAnyMachineHas = std::int64_t{1} << 46;
  struct Large : Module {
    const ModulePtr<Scale> small = register_module<Scale>("small", 3);
    const ModulePtr<Scale> large = register_module<Scale>("large", std::int64_t{kMoreThanAnyMachineHas});
  };
  EXPECT_THAT([] { make_module<Large>()->materialize(at::kCPU); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("got none left at large.weight"), HasSubstr("take 262144 GiB"),
                                              HasSubstr("d9d_plan"))));
}

TEST(Module, Rejects_repeated_and_dotted_names) {
  struct Bad : Module {
    explicit Bad(const std::string& name) {
      register_parameter("weight", {.shape = {1}, .init = init::zeros()});
      register_parameter(name, {.shape = {1}, .init = init::zeros()});
    }
  };
  EXPECT_THROW(Bad("weight"), ConfigError);
  EXPECT_THROW(Bad("a.b"), ConfigError);
}

TEST(Module, Tied_parameters_are_listed_once) {
  struct Tied : Module {
    Tied() : first(register_module<Scale>("first", 3)) { register_parameter("tied", first->weight); }
    ModulePtr<Scale> first;
  };
  EXPECT_THAT(names(Tied()), ElementsAre("tied"));
}

struct RecordingHook : ModuleHook {
  RecordingHook(std::string name, std::vector<std::string>& log) : name_(std::move(name)), log_(log) {}
  void before_forward(Module&, const TensorRefs& inputs) override {
    log_.push_back(name_ + " before");
    inputs.at(0).get() = inputs.at(0).get() * 2;
  }
  void after_forward(Module&, const TensorRefs& outputs) override {
    log_.push_back(name_ + " after");
    outputs.at(0).get() = outputs.at(0).get() + 1;
  }
  std::string name_;
  std::vector<std::string>& log_;
};

TEST(Module, Hooks_enclose_forward_and_may_replace_tensors) {
  std::vector<std::string> log;
  const auto model = ready_module();
  const at::Tensor x = at::ones({3});
  const at::Tensor plain = at::tanh(2 * 2 * x * model->first->weight->local()) + 2;
  model->first->add_hook(std::make_shared<RecordingHook>("outer", log));
  model->first->add_hook(std::make_shared<RecordingHook>("inner", log));
  EXPECT_TRUE(at::allclose(model->first(x), plain));
  EXPECT_THAT(log, ElementsAre("outer before", "inner before", "inner after", "outer after"));
}

TEST(Module, Checkpointed_activations_give_the_same_gradients_and_count_once) {
  const at::Tensor x = at::ones({3});
  const auto plain = ready_module();
  plain(x).sum().backward();
  const auto checkpointed = ready_module();
  checkpointed->first->set_activation_checkpointing(true);
  checkpointed(x).sum().backward();
  EXPECT_TRUE(at::equal(plain->first->weight->local().grad(), checkpointed->first->weight->local().grad()));
  EXPECT_EQ(checkpointed->first->counter->local.item<float>(), 1.0F);
}

TEST(Module, Converts_floating_tensors_only_where_they_follow) {
  const auto model = ready_module();
  model->to(at::kDouble);
  EXPECT_EQ(model->first->weight->local().scalar_type(), at::kDouble);
  EXPECT_EQ(model->first->counter->local.scalar_type(), at::kDouble);
  EXPECT_TRUE(model->first->weight->requires_grad());
}

}  // namespace
}  // namespace d9d::module_test
