// Freezes a model but for what a method trains, and adds the method's adapters. Adapters are children of the modules
// that they belong to (d9d/blocks/linear/low_rank_adapter.h), so names of the model's own parameters do not change and
// its checkpoints load as before.
//
// Example
//   auto model = make_decoder_for_causal_lm(build_model<Qwen3Dense>(sizes, {}));            // on the meta device
//   const PeftInjection injected = inject_peft(method, *model);
//   parallelize_...(*model), model->materialize(device), model->reset_parameters(seed);     // A random, B zero
#pragma once

#include <string>
#include <vector>

#include "d9d/modules/module.h"
#include "d9d/peft/config.h"

namespace d9d {

struct PeftInjection {
  std::vector<std::string> adapted;    // modules that got adapters
  std::vector<std::string> trained;    // parameters, in the order of registration
  std::vector<std::string> unmatched;  // patterns that matched nothing that they are for
  std::vector<std::string> linears;    // all modules that could have adapters
};

// Local, on the meta device, in the dtype that the model computes in, before parallelize_*(). Throws ConfigError for a
// pattern that matches nothing, and for what inject_peft_into_stage() refuses.
PeftInjection inject_peft(const PeftConfig& method, Module& model);

// The same for one stage of a pipeline, where patterns may match nothing: the caller joins the stages and calls
// check_patterns(). Throws ConfigError, naming the module, for adapters that are not built: of adopted modules
// other than torch::nn::Linear, dropout of those within a mixture of experts, DoRA of others than linears between
// hidden activations or of weights that full_tune trains, and two adapters of one module, also if it has one from
// before. An embedding that this stage has for a tied head alone gets none. Weights that several modules have belong to
// the first, so that all stages that have tied ones train or freeze them.
[[nodiscard]] PeftInjection inject_peft_into_stage(const PeftConfig& method, Module& stage);

// Local. Throws ConfigError for the first pattern that no stage matches, with names that it could have matched. stages:
// of the whole model.
void check_patterns(const std::vector<PeftInjection>& stages);

}  // namespace d9d
