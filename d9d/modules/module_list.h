// Children of one kind whose names are numbers, such as layers.0 and layers.1.
//
// Example
//   class Encoder : public Module {
//    public:
//     explicit Encoder(std::int64_t num_layers) {
//       for (std::int64_t i = 0; i < num_layers; ++i) layers->append(make_module<EncoderLayer>());
//     }
//     [[nodiscard]] at::Tensor forward(at::Tensor x) const {
//       for (const ModulePtr<EncoderLayer>& layer : *layers) x = layer(x);
//       return x;
//     }
//     const ModulePtr<ModuleList<EncoderLayer>> layers = register_module<ModuleList<EncoderLayer>>("layers");
//   };
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

template <class T>
class ModuleList : public Module {
 public:
  // first_name: the name of the first child, of which a pipeline stage makes the global index of its first layer.
  explicit ModuleList(std::int64_t first_name = 0) : first_name_(first_name) {}

  void append(ModulePtr<T> module) {
    register_module(std::to_string(first_name_ + static_cast<std::int64_t>(modules_.size())), module);
    modules_.push_back(std::move(module));
  }

  [[nodiscard]] const std::vector<ModulePtr<T>>& modules() const { return modules_; }
  [[nodiscard]] std::size_t size() const { return modules_.size(); }
  [[nodiscard]] const ModulePtr<T>& operator[](std::size_t index) const { return modules_.at(index); }
  [[nodiscard]] auto begin() const { return modules_.begin(); }
  [[nodiscard]] auto end() const { return modules_.end(); }

 private:
  std::int64_t first_name_;
  std::vector<ModulePtr<T>> modules_;
};

}  // namespace d9d
