#include <functional>
#include <tuple>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/kernels/attention/scaled_dot_product_attention.h"

namespace d9d::kernels::resolve_sdpa_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr SdpaDevice kCpu;
constexpr SdpaDevice kHopper{.is_cuda = true, .cuda_capability_major = 9, .has_cudnn_graphs = true, .is_half = true};
constexpr SdpaDevice kAmpere{.is_cuda = true, .cuda_capability_major = 8, .is_half = true};

SdpaDevice changed(SdpaDevice device, const std::function<void(SdpaDevice&)>& change) {
  change(device);
  return device;
}

// The table of d9d for both flash packages, one of them, or none, translated to GPUs with both fused kernels, one, or
// none.
TEST(ResolveSdpa, Without_a_preference_follows_what_is_there_and_what_is_needed) {
  const std::vector<std::tuple<SdpaDevice, SdpaNeeds, SdpaBackend>> table = {
      {kHopper, {.sinks = true, .window = true}, SdpaBackend::kCudnn},
      {kAmpere, {.window = true}, SdpaBackend::kFlash},
      {kCpu, {}, SdpaBackend::kTorch},
      {kCpu, {.sinks = true}, SdpaBackend::kEager},
      {kCpu, {.window = true}, SdpaBackend::kEager},
      {kHopper, {.mask = true}, SdpaBackend::kTorch},
      {kHopper, {.mask = true, .sinks = true}, SdpaBackend::kEager},
      {kHopper, {.mask = true, .window = true}, SdpaBackend::kEager},
  };
  for (const auto& [device, needs, backend] : table) {
    EXPECT_EQ(resolve_sdpa({.needs = needs, .device = device}).backend, backend)
        << device.is_cuda << needs.mask << needs.sinks << needs.window;
  }
}

TEST(ResolveSdpa, On_a_GPU_takes_the_graphs_of_cudnn_where_there_is_no_mask) {
  for (const SdpaNeeds& needs : std::vector<SdpaNeeds>{{}, {.packed = true}, {.softcap = true}, {.logsumexp = true}}) {
    EXPECT_EQ(resolve_sdpa({.needs = needs, .device = kHopper}).backend, SdpaBackend::kCudnn);
  }
}

TEST(ResolveSdpa, On_a_GPU_takes_flash_for_wide_heads_and_where_bits_must_repeat) {
  const auto wide = changed(kHopper, [](auto& device) { device.num_features = 192; });
  EXPECT_EQ(resolve_sdpa({.needs = {.sinks = true}, .device = wide}).backend, SdpaBackend::kFlash);
  const auto repeats = changed(kHopper, [](auto& device) { device.is_deterministic = true; });
  for (const SdpaNeeds& needs : std::vector<SdpaNeeds>{{}, {.window = true}, {.sinks = true}, {.packed = true}}) {
    EXPECT_EQ(resolve_sdpa({.needs = needs, .device = repeats}).backend, SdpaBackend::kFlash);
  }
  EXPECT_EQ(resolve_sdpa({.needs = {.softcap = true}, .device = repeats}).backend, SdpaBackend::kEager);
}

TEST(ResolveSdpa, Says_why_no_fused_kernel_of_a_GPU_runs) {
  const auto why = [](const SdpaNeeds& needs, const SdpaDevice& device) {
    const auto choice = resolve_sdpa({.needs = needs, .device = device});
    EXPECT_EQ(choice.backend, SdpaBackend::kEager);
    return choice.why;
  };
  EXPECT_THAT(why({.window = true}, kCpu), HasSubstr("no GPU"));
  EXPECT_THAT(why({.mask = true, .window = true}, kHopper), HasSubstr("mask"));
  EXPECT_THAT(why({.softcap = true}, kAmpere), HasSubstr("Hopper"));
  EXPECT_THAT(why({.softcap = true, .logsumexp = true}, kHopper), HasSubstr("logsumexp"));
  EXPECT_THAT(why({.packed = true, .key_rooms = true, .softcap = true}, kHopper), HasSubstr("rooms"));
  EXPECT_THAT(why({.logsumexp = true}, changed(kHopper, [](auto& device) { device.num_features = 256; })),
              HasSubstr("logsumexp"));
  EXPECT_THAT(why({.window = true}, changed(kHopper, [](auto& device) { device.is_half = false; })), HasSubstr("bf16"));
  EXPECT_THAT(why({.window = true}, changed(kHopper, [](auto& device) { device.num_features = 60; })),
              HasSubstr("multiple of 8"));
  EXPECT_THAT(why({.packed = true}, changed(kHopper, [](auto& device) { device.is_half = false; })), HasSubstr("bf16"));
}

TEST(ResolveSdpa, Takes_packed_sequences_with_torch_on_a_CPU) {
  EXPECT_EQ(resolve_sdpa({.needs = {.packed = true}}).backend, SdpaBackend::kTorch);
  const SdpaPreferences torch{.configured = TorchSdpaConfig{}};
  EXPECT_EQ(resolve_sdpa({.needs = {.packed = true}, .preferences = torch}).backend, SdpaBackend::kTorch);
  EXPECT_EQ(resolve_sdpa({.needs = {.packed = true}, .device = kHopper, .preferences = torch}).backend,
            SdpaBackend::kFlash);
}

TEST(ResolveSdpa, Prefers_the_configuration_to_the_environment) {
  const auto environment = resolve_sdpa({.preferences = {.environment = EagerSdpaConfig{}}});
  EXPECT_EQ(environment.backend, SdpaBackend::kEager);
  EXPECT_THAT(environment.why, HasSubstr("D9D_BACKEND_AUTO_SDPA"));
  const auto both = resolve_sdpa({.preferences = {.configured = TorchSdpaConfig{}, .environment = EagerSdpaConfig{}}});
  EXPECT_EQ(both.backend, SdpaBackend::kTorch);
  EXPECT_THAT(both.why, HasSubstr("configuration"));
}

TEST(ResolveSdpa, Hands_the_allowed_kernels_to_torch) {
  const TorchSdpaConfig allowed{{{TorchSdpaKernel::kFlash, TorchSdpaKernel::kMath}}};
  EXPECT_THAT(resolve_sdpa({.preferences = {.configured = allowed}}).kernels,
              ElementsAre(TorchSdpaKernel::kFlash, TorchSdpaKernel::kMath));
  EXPECT_THAT(resolve_sdpa({}).kernels, IsEmpty());
}

TEST(ResolveSdpa, Runs_flash_kinds_on_what_is_built_and_says_so) {
  for (const auto& [config, name] : {std::pair{SdpaConfig(FlashAttention2SdpaConfig{}), "flash_attention_2"},
                                     std::pair{SdpaConfig(FlashAttention4SdpaConfig{}), "flash_attention_4"}}) {
    const SdpaPreferences flash{.configured = config};
    const auto plain = resolve_sdpa({.preferences = flash});
    EXPECT_EQ(plain.backend, SdpaBackend::kTorch);
    EXPECT_THAT(plain.why, HasSubstr(name));
    EXPECT_EQ(resolve_sdpa({.needs = {.window = true}, .preferences = flash}).backend, SdpaBackend::kEager);
    EXPECT_EQ(resolve_sdpa({.needs = {.window = true}, .device = kHopper, .preferences = flash}).backend,
              SdpaBackend::kCudnn);
  }
  EXPECT_EQ(
      resolve_sdpa({.needs = {.sinks = true}, .preferences = {.configured = FlashAttention4SdpaConfig{}}}).backend,
      SdpaBackend::kEager);
}

TEST(ResolveSdpa, Refuses_a_choice_that_cannot_do_what_the_layer_needs) {
  const auto refuses = [](const SdpaConfig& config, const SdpaNeeds& needs) {
    EXPECT_THROW((void)resolve_sdpa({.needs = needs, .preferences = {.configured = config}}), ConfigError);
    EXPECT_THROW((void)resolve_sdpa({.needs = needs, .preferences = {.environment = config}}), ConfigError);
  };
  refuses(TorchSdpaConfig{}, {.sinks = true});
  refuses(TorchSdpaConfig{}, {.window = true});
  refuses(TorchSdpaConfig{}, {.softcap = true});
  refuses(FlashAttention2SdpaConfig{}, {.sinks = true});
  refuses(FlashAttention2SdpaConfig{}, {.mask = true});
  refuses(FlashAttention4SdpaConfig{}, {.mask = true});
}

TEST(ResolveSdpa, Lets_eager_do_everything) {
  const SdpaNeeds all{.mask = true, .sinks = true, .window = true};
  EXPECT_EQ(resolve_sdpa({.needs = all, .preferences = {.configured = EagerSdpaConfig{}}}).backend,
            SdpaBackend::kEager);
}

}  // namespace
}  // namespace d9d::kernels::resolve_sdpa_test
