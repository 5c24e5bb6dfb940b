// Fine-tunes a published model, or an export of ours, on conversations: all of its weights, or adapters (LoRA). Its
// family is that of the folder's config.json.
//
//   finetune examples/finetune/lora.json [key.path=value ...]
#include "examples/common/pretrain.h"
#include "examples/common/source_family.h"

int main(int argc, char** argv) {
  return examples::run_for_source_family(
      argc, argv, [&](const auto& family) { return examples::run_pretraining(family, argc, argv); });
}
