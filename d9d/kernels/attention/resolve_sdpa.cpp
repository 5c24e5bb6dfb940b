#include "d9d/kernels/attention/resolve_sdpa.h"

#include "d9d/base/check.h"

namespace d9d::kernels {
namespace {

SdpaChoice resolve_flash(const SdpaNeeds& needs, const char* source, const char* name) {
  D9D_CHECK(!needs.mask, ConfigError, "[kernels::resolve_sdpa] expected no attention mask with ", name,
            ", which takes none, got one asked for by ", source, ". Use torch or eager.");
  if (needs.sinks || needs.window) {
    return {.backend = SdpaBackend::kEager,
            .why = cat(source, " asks for ", name, "; sinks and windows run on eager, the only core with them")};
  }
  return {.backend = SdpaBackend::kTorch,
          .why = cat(source, " asks for ", name, ", which runs on LibTorch's fused kernels")};
}

SdpaChoice resolve_selection(const SdpaSelection& selection, const SdpaNeeds& needs, const char* source) {
  switch (selection.kind) {
    case SdpaKind::kFlashAttention4:
      return resolve_flash(needs, source, "flash_attention_4");
    case SdpaKind::kFlashAttention2:
      D9D_CHECK(!needs.sinks, ConfigError,
                "[kernels::resolve_sdpa] expected no learnable sinks with flash_attention_2, which has none, got some "
                "asked for by ",
                source, ". Use flash_attention_4 or eager.");
      return resolve_flash(needs, source, "flash_attention_2");
    case SdpaKind::kTorch:
      D9D_CHECK(
          !needs.sinks, ConfigError,
          "[kernels::resolve_sdpa] expected no learnable sinks with torch, which has none, got some asked for by ",
          source, ". Use eager.");
      D9D_CHECK(!needs.window, ConfigError,
                "[kernels::resolve_sdpa] expected no sliding window with torch, which has none, got one asked for by ",
                source, ". Use eager.");
      return {.backend = SdpaBackend::kTorch, .kernels = selection.kernels, .why = cat(source, " asks for torch")};
    case SdpaKind::kEager:
      return {.backend = SdpaBackend::kEager, .why = cat(source, " asks for eager")};
  }
  throw InternalError("[kernels::resolve_sdpa] unknown kind");
}

}  // namespace

SdpaChoice resolve_sdpa(const SdpaRequest& request) {
  if (request.configured) return resolve_selection(*request.configured, request.needs, "the configuration");
  if (request.environment) return resolve_selection(*request.environment, request.needs, "D9D_BACKEND_AUTO_SDPA");
  if (request.needs.sinks || request.needs.window) {
    return {.backend = SdpaBackend::kEager, .why = "sinks and windows need eager"};
  }
  return {.backend = SdpaBackend::kTorch, .why = "nothing that LibTorch's kernels lack is needed"};
}

}  // namespace d9d::kernels
