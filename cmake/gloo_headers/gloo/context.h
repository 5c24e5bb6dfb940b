// Declares what c10d's header names, see d9d/core/communicator/process_group/gloo_group.cpp.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
