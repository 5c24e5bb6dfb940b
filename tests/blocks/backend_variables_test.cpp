// The effect of the environment variables D9D_BACKEND_AUTO_SDPA and D9D_BACKEND_AUTO_GROUPED_MM.
#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/attention/sdpa.h"
#include "d9d/blocks/moe/grouped_linear.h"

#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::backend_variables_test {
namespace {

using test::message_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) { ::setenv(name, value, /*overwrite=*/1); }
  ~EnvironmentVariable() { ::unsetenv(name_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  const char* name_;
};

constexpr const char* kSdpa = "D9D_BACKEND_AUTO_SDPA";
constexpr const char* kGroupedMM = "D9D_BACKEND_AUTO_GROUPED_MM";

// The kernel that a core with these parameters would use.
kernels::SdpaChoice sdpa_choice(const SdpaParameters& parameters = {}) {
  const auto core = make_module<Sdpa>(parameters);
  return kernels::resolve_sdpa({.preferences = core->preferences});
}

TEST(BackendVariable, Of_attention_decides_where_the_configuration_is_silent) {
  const EnvironmentVariable variable(kSdpa, R"({"kind": "eager"})");
  const kernels::SdpaChoice choice = sdpa_choice();
  EXPECT_EQ(choice.backend, kernels::SdpaBackend::kEager);
  EXPECT_EQ(choice.why, "D9D_BACKEND_AUTO_SDPA asks for eager");
}

TEST(BackendVariable, Of_attention_may_name_kernels_of_torch) {
  const EnvironmentVariable variable(kSdpa, R"({"kind": "torch", "backends": ["MATH", "FLASH_ATTENTION"]})");
  const kernels::SdpaChoice choice = sdpa_choice();
  EXPECT_EQ(choice.backend, kernels::SdpaBackend::kTorch);
  EXPECT_THAT(choice.kernels, ElementsAre(TorchSdpaKernel::kMath, TorchSdpaKernel::kFlash));
}

TEST(BackendVariable, Of_attention_gives_way_to_the_configuration) {
  const EnvironmentVariable variable(kSdpa, R"({"kind": "eager"})");
  SdpaParameters parameters;
  parameters.backend = TorchSdpaConfig{};
  EXPECT_EQ(sdpa_choice(parameters).backend, kernels::SdpaBackend::kTorch);
}

TEST(BackendVariable, Of_attention_is_refused_by_its_name) {
  const auto error_with = [](const char* value, const SdpaParameters& parameters) {
    const EnvironmentVariable variable(kSdpa, value);
    return message_of<ConfigError>([&] { (void)make_module<Sdpa>(parameters); });
  };
  EXPECT_THAT(error_with("eager", {}), HasSubstr("D9D_BACKEND_AUTO_SDPA"));
  EXPECT_THAT(error_with(R"({"kind": "egaer"})", {}), MatchesRegex(".*D9D_BACKEND_AUTO_SDPA.*egaer.*'eager'.*"));
  SdpaParameters with_sinks;
  with_sinks.num_sinks = 2;
  EXPECT_THAT(error_with(R"({"kind": "torch"})", with_sinks), HasSubstr("asked for by D9D_BACKEND_AUTO_SDPA"));
}

kernels::GroupedMMBackend grouped_backend(const std::optional<GroupedMMConfig>& configured) {
  const auto linear = make_module<GroupedLinear>(
      GroupedLinearConfig{.num_groups = 2, .in_features = 3, .out_features = 4, .backend = configured});
  return test::initialized(linear)->backend();
}

TEST(BackendVariable, Of_grouped_products_decides_where_the_configuration_is_silent) {
  EXPECT_EQ(grouped_backend(std::nullopt), kernels::GroupedMMBackend::kEager);
  const EnvironmentVariable variable(kGroupedMM, R"({"kind": "torch"})");
  EXPECT_EQ(grouped_backend(std::nullopt), kernels::GroupedMMBackend::kTorch);
  EXPECT_EQ(grouped_backend(EagerGroupedMMConfig{}), kernels::GroupedMMBackend::kEager);
}

TEST(BackendVariable, Of_grouped_products_is_refused_by_its_name) {
  const EnvironmentVariable variable(kGroupedMM, R"({"kind": "quak"})");
  EXPECT_THAT(message_of<ConfigError>([] { (void)grouped_backend(std::nullopt); }),
              MatchesRegex(".*D9D_BACKEND_AUTO_GROUPED_MM.*quak.*'quack'.*"));
}

}  // namespace
}  // namespace d9d::backend_variables_test
