#include "d9d/models/load_decoder.h"

#include <optional>

#include <nlohmann/json.hpp>

#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/models/families.h"

namespace d9d {

ModulePtr<DecoderForCausalLM> load_decoder(const std::filesystem::path& folder, at::ScalarType dtype,
                                           at::Device device) {
  const HuggingFaceDirectory directory(folder);
  std::optional<ModulePtr<DecoderForCausalLM>> model;
  visit_family_of(directory.read_config(), [&](const auto& family) {
    const auto sizes = family.parameters_from_huggingface(directory.read_config());
    model = make_decoder_for_causal_lm(family.build(sizes, {}));
    (*model)->to(dtype);
    (*model)->materialize(device);
    (*model)->reset_parameters(/*base_seed=*/0);  // also computes tables that no file has
    load_model_state(**model, family.from_huggingface(sizes, CausalLMHeadConfig{}, directory.names()),
                     tensors_of(directory));
  });
  return *model;
}

}  // namespace d9d
