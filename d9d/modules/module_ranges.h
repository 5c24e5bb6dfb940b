// Names calls of modules in traces (core/device/named_range.h), where the user asks for it.
//
// Example
//   set_module_ranges(true);
//   model(x);                          // ranges "model.layers.0", "model.layers.0.mlp", ...
#pragma once

#include <atomic>
#include <optional>

#include "d9d/core/device/named_range.h"

namespace d9d {

class Module;

// For all threads of the process. Off at first.
void set_module_ranges(bool are_named);

namespace detail {

extern std::atomic<bool> names_modules;  // lint: allow(mutable-global): a trace is of the whole process

// The range of a module's forward, if such ranges are on.
class ModuleRange {
 public:
  explicit ModuleRange(const Module& module) {
    if (names_modules.load(std::memory_order_relaxed)) begin(module);
  }

 private:
  void begin(const Module& module);
  std::optional<NamedRange> range_;
};

}  // namespace detail
}  // namespace d9d
