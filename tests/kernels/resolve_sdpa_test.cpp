#include "d9d/kernels/attention/resolve_sdpa.h"

#include <gmock/gmock.h>

#include "d9d/base/check.h"

namespace d9d::kernels {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ResolveSdpa, Without_a_wish_follows_what_the_layer_needs) {
  const std::vector<std::pair<SdpaNeeds, SdpaBackend>> table = {
      {{}, SdpaBackend::kTorch},
      {{.mask = true}, SdpaBackend::kTorch},
      {{.sinks = true}, SdpaBackend::kEager},
      {{.window = true}, SdpaBackend::kEager},
      {{.sinks = true, .window = true}, SdpaBackend::kEager},
      {{.mask = true, .sinks = true}, SdpaBackend::kEager},
      {{.mask = true, .window = true}, SdpaBackend::kEager},
      {{.mask = true, .sinks = true, .window = true}, SdpaBackend::kEager},
  };
  for (const auto& [needs, backend] : table) {
    EXPECT_EQ(resolve_sdpa({.needs = needs}).backend, backend) << needs.mask << needs.sinks << needs.window;
  }
}

TEST(ResolveSdpa, Prefers_the_configuration_to_the_environment) {
  const auto environment = resolve_sdpa({.environment = SdpaSelection{SdpaKind::kEager}});
  EXPECT_EQ(environment.backend, SdpaBackend::kEager);
  EXPECT_THAT(environment.why, HasSubstr("D9D_BACKEND_AUTO_SDPA"));
  const auto both =
      resolve_sdpa({.configured = SdpaSelection{SdpaKind::kTorch}, .environment = SdpaSelection{SdpaKind::kEager}});
  EXPECT_EQ(both.backend, SdpaBackend::kTorch);
  EXPECT_THAT(both.why, HasSubstr("configuration"));
}

TEST(ResolveSdpa, Hands_the_allowed_kernels_to_torch) {
  const SdpaSelection selection{SdpaKind::kTorch, {TorchSdpaKernel::kFlash, TorchSdpaKernel::kMath}};
  EXPECT_THAT(resolve_sdpa({.configured = selection}).kernels,
              ElementsAre(TorchSdpaKernel::kFlash, TorchSdpaKernel::kMath));
  EXPECT_THAT(resolve_sdpa({}).kernels, IsEmpty());
}

TEST(ResolveSdpa, Runs_flash_kinds_on_what_is_built_and_says_so) {
  for (const auto& [kind, name] : {std::pair{SdpaKind::kFlashAttention2, "flash_attention_2"},
                                   std::pair{SdpaKind::kFlashAttention4, "flash_attention_4"}}) {
    const auto plain = resolve_sdpa({.configured = SdpaSelection{kind}});
    EXPECT_EQ(plain.backend, SdpaBackend::kTorch);
    EXPECT_THAT(plain.why, HasSubstr(name));
    EXPECT_EQ(resolve_sdpa({.needs = {.window = true}, .configured = SdpaSelection{kind}}).backend,
              SdpaBackend::kEager);
  }
  EXPECT_EQ(resolve_sdpa({.needs = {.sinks = true}, .configured = SdpaSelection{SdpaKind::kFlashAttention4}}).backend,
            SdpaBackend::kEager);
}

TEST(ResolveSdpa, Refuses_a_choice_that_cannot_do_what_the_layer_needs) {
  const auto refuses = [](SdpaKind kind, const SdpaNeeds& needs) {
    EXPECT_THROW((void)resolve_sdpa({.needs = needs, .configured = SdpaSelection{kind}}), ConfigError);
    EXPECT_THROW((void)resolve_sdpa({.needs = needs, .environment = SdpaSelection{kind}}), ConfigError);
  };
  refuses(SdpaKind::kTorch, {.sinks = true});
  refuses(SdpaKind::kTorch, {.window = true});
  refuses(SdpaKind::kFlashAttention2, {.sinks = true});
  refuses(SdpaKind::kFlashAttention2, {.mask = true});
  refuses(SdpaKind::kFlashAttention4, {.mask = true});
}

TEST(ResolveSdpa, Lets_eager_do_everything) {
  const SdpaNeeds all{.mask = true, .sinks = true, .window = true};
  EXPECT_EQ(resolve_sdpa({.needs = all, .configured = SdpaSelection{SdpaKind::kEager}}).backend, SdpaBackend::kEager);
}

}  // namespace
}  // namespace d9d::kernels
