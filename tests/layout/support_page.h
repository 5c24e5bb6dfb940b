// docs/parallelism/support.md as text.
//
// Example
//   const std::map<std::string, std::string> refusals = {{"tp2_qwen3_moe", "[models::parallelize_decoder] ..."}};
//   std::cout << support_page(support_list(), refusals, rounded_meshes());
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/layout/support_list.h"

namespace d9d::test {

// Meshes that tests/program/layouts_rounding_test.py trains in bfloat16 on GPUs.
struct RoundedMeshes {
  std::vector<DeviceMeshParameters> dense;
  std::vector<DeviceMeshParameters> experts;
};
[[nodiscard]] RoundedMeshes rounded_meshes();

// `refusals`: the messages by the names of refused cases. All other cases train as one rank does.
[[nodiscard]] std::string support_page(const std::vector<SupportCase>& cases,
                                       const std::map<std::string, std::string>& refusals,
                                       const RoundedMeshes& rounded);
// What README.md has of it: a table of which axes train together, and the meshes of all axes.
[[nodiscard]] std::string support_summary(const std::vector<SupportCase>& cases,
                                          const std::map<std::string, std::string>& refusals);

}  // namespace d9d::test
