// What of a model has adapters, and what is trained beside them: names and sizes without values. Exports and imports of
// adapters are made from it.
//
// Example
//   const AdaptedModel adapted = adapted_model(method, *whole_model);   // on the meta device
//   const StateMapper merged = merged_on_the_way(adapted, to_huggingface, at::kBFloat16);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/modules/module.h"
#include "d9d/peft/config.h"

namespace d9d {

struct AdaptedLinear {
  std::string name;                        // of the module
  std::vector<std::int64_t> weight_shape;  // of the whole weight: [out, in], of experts [experts, in, out]
  std::int64_t rank = 0;
  double scale = 1.0;  // of the adapter's term

  [[nodiscard]] bool is_grouped() const { return weight_shape.size() == 3; }
  // Names of parameters. A [rank, in] and B [out, rank], of experts [experts, in, rank] and [experts, rank, out].
  [[nodiscard]] std::string weight() const { return name + ".weight"; }
  [[nodiscard]] std::string a() const { return name + ".lora_A.weight"; }
  [[nodiscard]] std::string b() const { return name + ".lora_B.weight"; }
};

struct TunedParameter {
  std::string name;
  std::vector<std::int64_t> shape;  // of the whole tensor
  ParameterRole role;
};

struct AdaptedModel {
  std::vector<AdaptedLinear> linears;
  std::vector<TunedParameter> tuned;  // trained parameters that are no part of an adapter
  std::vector<LoraParams> params;     // of each LoRA in the method
};

// Local. Injects the method into the model as inject_peft(), and describes the result.
[[nodiscard]] AdaptedModel adapted_model(const PeftConfig& method, Module& model);

// Local. The linears of a model that have adapters now.
[[nodiscard]] std::vector<AdaptedLinear> adapted_linears(const Module& model);

}  // namespace d9d
