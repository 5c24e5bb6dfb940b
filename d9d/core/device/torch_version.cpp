#include "d9d/core/device/torch_version.h"

#include <ATen/ATen.h>
#include <torch/headeronly/version.h>

#include "d9d/base/check.h"

namespace d9d {

std::string running_torch_version() {
  const std::string config = at::show_config();  // "..., TORCH_VERSION=2.11.0, ..."
  const std::string key = "TORCH_VERSION=";
  const auto begin = config.find(key);
  if (begin == std::string::npos) return "unknown";
  return config.substr(begin + key.size(), config.find(',', begin) - begin - key.size());
}

void check_torch_version() {
  const std::string built = TORCH_VERSION;  // lint: allow(version-branch): the one supported, seen again at run time
  D9D_CHECK(running_torch_version() == built, StateError, "[core::torch_version] expected LibTorch ", built,
            ", which this program was built against, got ", running_torch_version(),
            ". Install requirements.txt, or build again.");
}

}  // namespace d9d
