// Averages of parameters against torch.optim.swa_utils, and parameters that take their values for a while.
#include "d9d/optim/ema.h"

#include <limits>
#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/dtype/scalar_type.h"

#include "tests/support/python.h"

namespace d9d::ema_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kSize = 37;
constexpr int kSteps = 50;

// Those of ema_oracle.py.
at::Tensor values(int step, std::int64_t index) {
  const at::Tensor i = at::arange(kSize, at::kDouble);
  return at::sin(i + 1 + 10 * index) + at::cos(i + 0.37 * step) / (1 + 0.05 * step);
}

std::vector<NamedParameter> parameters(at::ScalarType dtype) {
  return {{"first", values(0, 0).to(dtype).requires_grad_()}, {"second", values(0, 1).to(dtype).requires_grad_()}};
}

void set_values(const std::vector<NamedParameter>& parameters, int step) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].tensor.copy_(values(step, static_cast<std::int64_t>(i)));
  }
}

at::Tensor averages_of(const Ema& ema) {
  const auto state = ema.state_dict();
  return at::cat({state.at("first.average").local, state.at("second.average").local});
}

at::Tensor after_50_steps(const EmaConfig& config, at::ScalarType dtype) {
  const std::vector<NamedParameter> leaves = parameters(dtype);
  Ema ema(leaves, config);
  for (int step = 1; step <= kSteps; ++step) {
    set_values(leaves, step);
    ema.update();
  }
  EXPECT_EQ(ema.num_updates(), kSteps);
  return averages_of(ema);
}

// 50 steps of some three operations, which round at 1e-16 or 6e-8 each.
constexpr double kFp64 = 1e-14, kFp32 = 5e-6;

TEST(EmaOfTorch, Is_equalled_over_50_steps_for_each_option_and_dtype) {
  struct Case {
    EmaConfig config;
    Dtype dtype;
  };
  std::vector<Case> cases;
  Json records = Json::array();
  for (const EmaConfig& config :
       {EmaConfig{.decay = 0.9}, EmaConfig{.decay = 0.0}, EmaConfig{.decay = 0.999, .warmup = true},
        EmaConfig{.decay = 0.3, .warmup = true, .start_step = 3, .period_steps = 4},
        EmaConfig{.decay = 0.9, .start_step = 1}, EmaConfig{.decay = 0.9, .start_step = 20, .period_steps = 7}}) {
    for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32, Dtype::kBFloat16}) {
      cases.push_back({.config = config, .dtype = dtype});
      Json record = write_record(config);
      record["dtype"] = dtype == Dtype::kFloat64 ? "float64" : "float32";
      record["rounded"] = enum_name(dtype);
      records.push_back(record);
    }
  }
  std::istringstream numbers(test::run_python("tests/optim/ema_oracle.py", {records.dump()}));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(records[i].dump());
    std::vector<double> expected(2 * kSize);
    for (double& value : expected) ASSERT_TRUE(numbers >> value);
    const at::Tensor actual = after_50_steps(cases[i].config, to_scalar_type(cases[i].dtype));
    EXPECT_EQ(actual.scalar_type(), cases[i].dtype == Dtype::kFloat64 ? at::kDouble : at::kFloat);
    const double error = (actual.to(at::kDouble) - at::tensor(expected, at::kDouble)).abs().max().item<double>();
    EXPECT_LT(error, cases[i].dtype == Dtype::kFloat64 ? kFp64 : kFp32);
  }
}

TEST(Ema, Begins_as_the_parameters_and_equals_them_until_it_starts) {
  const std::vector<NamedParameter> leaves = parameters(at::kDouble);
  Ema ema(leaves, {.decay = 0.9, .start_step = 60, .period_steps = 7});
  EXPECT_TRUE(at::equal(averages_of(ema), at::cat({values(0, 0), values(0, 1)})));
  set_values(leaves, 1);
  EXPECT_TRUE(at::equal(averages_of(ema), at::cat({values(0, 0), values(0, 1)}))) << "averages are no aliases";
  EXPECT_TRUE(at::equal(after_50_steps({.decay = 0.9, .start_step = 60, .period_steps = 7}, at::kDouble),
                        at::cat({values(kSteps, 0), values(kSteps, 1)})));
}

TEST(Ema, Goes_on_from_its_state) {
  const EmaConfig config{.decay = 0.7, .warmup = true, .start_step = 2, .period_steps = 3};
  const std::vector<NamedParameter> first = parameters(at::kBFloat16), second = parameters(at::kBFloat16);
  Ema whole(first, config), rest(second, config);
  for (int step = 1; step <= 12; ++step) {
    set_values(first, step);
    whole.update();
    if (step == 7) {
      const auto state = whole.state_dict();
      for (const auto& [name, tensor] : rest.state_dict()) tensor.local.copy_(state.at(name).local);
    }
    if (step <= 7) continue;
    set_values(second, step);
    rest.update();
  }
  EXPECT_TRUE(at::equal(averages_of(rest), averages_of(whole)));
  EXPECT_EQ(rest.num_updates(), 12);
}

TEST(Ema, Has_parameters_of_many_dtypes_and_empty_ones) {
  const at::Tensor half = at::ones({3}, at::kHalf).requires_grad_(), empty = at::ones({0}, at::kFloat).requires_grad_();
  const at::Tensor wide = at::ones({2, 2}, at::kDouble).requires_grad_();
  Ema ema({{"half", half}, {"empty", empty}, {"wide", wide}}, {.decay = 0.5});
  const at::NoGradGuard no_grad;
  half.fill_(3);
  wide.fill_(5);
  ema.update();
  const auto state = ema.state_dict();
  EXPECT_TRUE(at::equal(state.at("half.average").local, at::full({3}, 2.0, at::kFloat)));
  EXPECT_TRUE(at::equal(state.at("wide.average").local, at::full({2, 2}, 3.0, at::kDouble)));
  EXPECT_EQ(state.at("empty.average").local.sizes(), at::IntArrayRef({0}));
  EXPECT_TRUE(at::equal(ema.rounded().at("half").local, at::full({3}, 2.0, at::kHalf)));
}

TEST(Ema, Refuses_what_is_no_parameter) {
  EXPECT_THAT([] { Ema({{"p", at::ones({2}, at::kLong)}}, {}); }, ThrowsMessage<ConfigError>(HasSubstr("'p'")));
  const at::Tensor leaf = at::ones({2}).requires_grad_();
  EXPECT_THAT([&] { Ema({{"p", leaf}, {"p", leaf}}, {}); }, ThrowsMessage<ConfigError>(HasSubstr("'p' twice")));
  // AveragedWeights would exchange its values twice.
  EXPECT_THAT([&] { Ema({{"p", leaf}, {"q", leaf}}, {}); }, ThrowsMessage<ConfigError>(HasSubstr("'p' and 'q'")));
}

TEST(Ema, Refuses_options_out_of_range) {
  const at::Tensor leaf = at::ones({2}).requires_grad_();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const EmaConfig& config : {EmaConfig{.decay = 1.0}, EmaConfig{.decay = -0.1}, EmaConfig{.decay = nan},
                                  EmaConfig{.start_step = -1}, EmaConfig{.period_steps = 0}}) {
    EXPECT_THAT([&] { Ema({{"p", leaf}}, config); }, ThrowsMessage<ConfigError>(HasSubstr("decay in [0, 1)")));
  }
}

class Swapped : public ::testing::TestWithParam<at::ScalarType> {};

// Of every kind of bits, NaN with a payload and -0 too.
TEST_P(Swapped, Parameters_have_the_averages_and_then_their_own_bits_again_in_the_same_memory) {
  const at::Tensor leaf = at::tensor({1.5, -0.0, 0.1, 1e30}, at::kDouble).to(GetParam());
  leaf[3] = -std::numeric_limits<double>::quiet_NaN();
  leaf.requires_grad_();
  Ema ema({{"p", leaf}}, {.decay = 0.5});
  const auto bits = [](const at::Tensor& tensor) { return tensor.detach().view(at::kByte).clone(); };
  {
    const at::NoGradGuard no_grad;
    leaf.add_(1.0);
    ema.update();
    leaf.mul_(0.3);
  }
  const at::Tensor trained = bits(leaf), average = ema.state_dict().at("p.average").local;
  const at::Tensor before = average.clone();
  const void* const address = leaf.data_ptr();
  try {
    const AveragedWeights averaged(ema);
    EXPECT_EQ(leaf.data_ptr(), address);
    EXPECT_TRUE(at::equal(bits(leaf), bits(before.to(GetParam()))));
    EXPECT_FALSE(at::equal(bits(leaf), trained));
    EXPECT_THAT([&] { ema.update(); }, ThrowsMessage<StateError>(HasSubstr("update()")));
    EXPECT_THAT([&] { (void)ema.rounded(); }, ThrowsMessage<StateError>(HasSubstr("rounded()")));
    EXPECT_THAT([&] { AveragedWeights again(ema); }, ThrowsMessage<StateError>(HasSubstr("AveragedWeights")));
    throw std::runtime_error("an evaluation fails");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(leaf.data_ptr(), address);
  EXPECT_TRUE(at::equal(bits(leaf), trained));
  EXPECT_TRUE(at::equal(bits(average), bits(before)));
  ema.update();
}

INSTANTIATE_TEST_SUITE_P(Of, Swapped, ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf));

}  // namespace
}  // namespace d9d::ema_test
