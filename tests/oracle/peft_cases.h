// What the comparisons of LoRA and DoRA with Hugging Face peft share: models, arguments of oracles, drawn adapters.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/blocks/linear/low_rank_adapter.h"

#include "tests/oracle/oracle_case.h"

namespace d9d::test {

// One of each: without biases, with a tied head, with biases and rsLoRA, experts.
inline std::vector<OracleCase> peft_cases() {
  std::vector<OracleCase> cases;
  for (const OracleCase& oracle : cases_in({Dtype::kFloat64}, "causal_lm")) {
    const std::string& name = oracle.architecture->name;
    for (const char* const chosen : {"qwen3_dense_plain", "qwen3_dense_tied", "qwen2_plain", "qwen3_moe_normalized"}) {
      if (name == chosen) cases.push_back(oracle);
    }
  }
  return cases;
}

// FOLDER [FIRST] CASE...
inline std::vector<std::string> peft_arguments(std::vector<std::string> first = {}) {
  first.insert(first.begin(), oracle_folder().string());
  for (const OracleCase& oracle : peft_cases()) first.push_back(oracle.folder_name());
  return first;
}

// Gives every parameter of an adapter its value. There must be one for each, and no other.
inline void copy_adapters(const Module& module, const Tensors& values) {
  std::size_t num_copied = 0;
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!is_adapter_parameter(name)) continue;
    ASSERT_TRUE(values.contains(name)) << name;
    parameter->copy_from(values.at(name));
    ++num_copied;
  }
  ASSERT_EQ(num_copied, values.size());
}

}  // namespace d9d::test
