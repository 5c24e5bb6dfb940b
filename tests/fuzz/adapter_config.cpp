#include <string_view>

#include "d9d/base/check.h"
#include "d9d/peft/peft_folder.h"

#include "tests/fuzz/scratch_folder.h"
#include "tests/fuzz/targets.h"

namespace d9d::fuzz {

void adapter_config(Bytes file) {
  static const ScratchFolder folder;
  static constexpr std::string_view kNoTensors{"\2\0\0\0\0\0\0\0{}", 10};
  static const std::filesystem::path weights =
      folder.write("adapter_model.safetensors", std::as_bytes(std::span(kNoTensors)));
  try {
    const PeftFolder adapters(folder.write("adapter_config.json", file).parent_path());
    for (const char* const module : {"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.experts.gate_up_proj"}) {
      const LoraParams params = adapters.params_of(module);
      D9D_ASSERT(params.r > 0 && params.alpha > 0, "r = ", params.r, ", alpha = ", params.alpha);
    }
  } catch (const IoError&) {
  } catch (const ConfigError&) {
  }
}

}  // namespace d9d::fuzz
