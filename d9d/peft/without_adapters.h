// Switches adapters off for the length of a scope.
//
// Example
//   {
//     const WithoutAdapters base({model.shared()});
//     ...                                    // forwards of the base model
//   }                                        // the adapters are back, the same objects
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "d9d/modules/module.h"

namespace d9d {

class WithoutAdapters {
 public:
  // Local. Takes the adapters off the modules below `models`. Not between the forward and the backward of a microbatch.
  // While it lives, parameters of adapters are not among those of the models, but stay in memory and laid out.
  explicit WithoutAdapters(const std::vector<std::shared_ptr<Module>>& models);
  ~WithoutAdapters();
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;

 private:
  std::vector<std::function<void()>> put_back_;
};

}  // namespace d9d
