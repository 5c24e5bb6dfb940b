#include "d9d/modules/eval_scope.h"

#include <string>

namespace d9d {

EvalScope::EvalScope(const std::vector<std::shared_ptr<Module>>& modules) : modules_(modules) {
  for (const auto& module : modules_) {
    module->for_each_module(
        [&](const std::string&, Module& each) { were_training_.emplace_back(&each, each.is_training()); });
    module->eval();
  }
}

// Outer modules come before inner ones, whose mode may differ.
EvalScope::~EvalScope() {
  for (const auto& [module, was_training] : were_training_) module->train(was_training);
}

}  // namespace d9d
