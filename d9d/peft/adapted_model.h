// What of a model has adapters, and what is trained beside them: names and sizes without values. Exports and imports of
// adapters are made from it.
//
// Example
//   const AdaptedModel adapted = adapted_model(method, *whole_model);   // on the meta device
//   const StateMapper merged = merged_on_the_way(adapted, to_huggingface, at::kBFloat16);
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "d9d/modules/module.h"
#include "d9d/peft/adapter_site.h"
#include "d9d/peft/config.h"

namespace d9d {

// A weight that an adapter adds to.
struct AdaptedWeight {
  std::string stored;               // its name in the model
  std::string merged;               // that of the sum: another one if the weight is another module's too
  std::vector<std::int64_t> shape;  // of the whole weight
};

struct AdaptedModule {
  std::string name;
  LowRankProduct product = LowRankProduct::kLinear;
  ParameterRole role = ParameterRole::kUnknown;  // of its weights
  std::vector<AdaptedWeight> weights;            // several: splits of a vocabulary, in order
  std::vector<std::string> a, b;                 // names of factors, as of LowRankTerms
  std::int64_t rank = 0;
  double scale = 1.0;          // of the term
  std::string magnitude = {};  // name of magnitudes [out], of DoRA; empty: none

  [[nodiscard]] bool has_magnitude() const { return !magnitude.empty(); }
  [[nodiscard]] bool is_experts() const { return product == LowRankProduct::kExperts; }
  [[nodiscard]] bool is_vocabulary() const { return role == ParameterRole::kEmbedding || role == ParameterRole::kHead; }
};

struct TunedParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // of the whole tensor
  ParameterRole role;
};

struct AdaptedModel {
  std::vector<AdaptedModule> modules;
  // Weights that several modules share, as a tied embedding and head do, of which one has an adapter: by the name in
  // the model, those that the other modules have for it. Merging unties them: each becomes a weight of its own.
  std::map<std::string, std::vector<std::string>> untied;
  std::vector<TunedParameter> tuned;  // trained parameters that are no part of an adapter
  std::vector<LoraParams> params;     // of each LoRA and DoRA in the method
};

// Local. Injects the method into the model as inject_peft(), and describes the result.
[[nodiscard]] AdaptedModel adapted_model(const PeftConfig& method, Module& model);

// Local. The adapters that a model has now: `modules` and `untied`.
[[nodiscard]] AdaptedModel adapters_of(const Module& model);

// Local. Names of the parameters of a model's adapters, among which are none of modules of one's own that are called
// lora_A.
[[nodiscard]] std::set<std::string> adapter_parameters(const Module& model);

}  // namespace d9d
