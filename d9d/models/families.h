// The list of the model families. Programs that train one family name it (kQwen3Dense, ...); tools and tests walk the
// list.
//
// Example
//   for_each_family([&](const auto& family) { names.push_back(family.name); });
//   visit_family_of(directory.read_config(), [&](const auto& family) { ... });
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/models/huggingface/decoder_config.h"
#include "d9d/models/llama3/model.h"
#include "d9d/models/model_family.h"
#include "d9d/models/qwen2/model.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_moe/huggingface.h"

namespace d9d {

// The list. Calls visit(family) for each family, in this order.
template <class Visit>
void for_each_family(const Visit& visit) {
  visit(kQwen3Dense);
  visit(kQwen3MoE);
  visit(kLlama3);
  visit(kQwen2);
}

// Calls visit(family) for the family that config.json names. Throws ConfigError that lists the families if "model_type"
// is none of theirs.
template <class Visit>
void visit_family_of(const nlohmann::json& config, const Visit& visit) {
  const nlohmann::json type = config.value("model_type", nlohmann::json());
  std::string types;
  bool is_known = false;
  for_each_family([&](const auto& family) {
    types += cat(types.empty() ? "'" : ", '", family.model_type, "'");
    is_known = is_known || type == family.model_type;
  });
  check_key(is_known, "model_type", "one of " + types, type.dump());
  for_each_family([&](const auto& family) {
    if (type == family.model_type) visit(family);
  });
}

}  // namespace d9d
