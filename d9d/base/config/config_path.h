// The position of a value in a configuration; every message about the value begins with it.
//
// Example
//   const ConfigPath path = ConfigPath{.source = "pretrain.json"} / "trainer" / "profiling";
//   D9D_CHECK(warmup <= period, ConfigError, path, "expected warmup_steps <= period_steps = ", period,
//             ", got ", warmup);
//   // [config] pretrain.json: trainer.profiling: expected ...
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

namespace d9d {

struct ConfigPath {
  std::string keys = {};    // dotted, list elements by index: "phases.0.steps"; empty: the whole configuration
  std::string source = {};  // the file; empty: built in code

  [[nodiscard]] ConfigPath operator/(std::string_view key) const;
  [[nodiscard]] ConfigPath operator/(std::size_t index) const { return *this / std::to_string(index); }
};

// "[config] pretrain.json: trainer.profiling: ".
std::ostream& operator<<(std::ostream& out, const ConfigPath& path);

// The path without its keys: "[config] pretrain.json: ".
[[nodiscard]] std::string config_source(const ConfigPath& path);

}  // namespace d9d
