// The head on a decoder backbone: one of the records below, selected in JSON by "kind".
//
// Example
//   {"kind": "classification", "num_labels": 3, "dropout": 0.1}
#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "d9d/base/record.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_preset.h"

namespace d9d {

struct CausalLMHeadConfig {
  // Which terms the gradients of the loss leave out; cce_exact: none.
  kernels::LinearCrossEntropyPreset preset = kernels::LinearCrossEntropyPreset::kCceExact;

  static constexpr Tag kTag = {"kind", "causal_lm"};
  static constexpr auto fields() {
    return record<CausalLMHeadConfig>(defaulted("preset", &CausalLMHeadConfig::preset));
  }
};

struct ClassificationHeadConfig {
  std::int64_t num_labels = 1;
  double dropout = 0.0;  // probability, before the projection

  static constexpr Tag kTag = {"kind", "classification"};
  static constexpr auto fields() {
    using Head = ClassificationHeadConfig;
    return record<Head>(required("num_labels", &Head::num_labels, at_least(1)),
                        defaulted("dropout", &Head::dropout, between(0, 1)));
  }
};

struct EmbeddingHeadConfig {
  std::optional<std::int64_t> embedding_dim = {};  // null: no projection, embeddings have the hidden size
  bool normalize = false;                          // to unit length

  static constexpr Tag kTag = {"kind", "embedding"};
  static constexpr auto fields() {
    using Head = EmbeddingHeadConfig;
    return record<Head>(defaulted("embedding_dim", &Head::embedding_dim, at_least(1)),
                        defaulted("normalize", &Head::normalize));
  }
};

using HeadConfig = std::variant<CausalLMHeadConfig, ClassificationHeadConfig, EmbeddingHeadConfig>;

}  // namespace d9d
