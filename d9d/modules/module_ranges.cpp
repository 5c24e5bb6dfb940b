#include "d9d/modules/module_ranges.h"

#include <string>

#include "d9d/modules/module.h"

namespace d9d {

std::atomic<bool> detail::names_modules{false};

void set_module_ranges(bool are_named) { detail::names_modules = are_named; }

void detail::ModuleRange::begin(const Module& module) {
  range_.emplace([&] {
    const std::string& name = module.canonical_name();
    return name.empty() ? std::string("model") : name;
  });
}

}  // namespace d9d
