// Declares what c10d's header names, see d9d/core/communicator/process_group/gloo_group.cpp.
#pragma once

namespace gloo::transport {

class Device {
 public:
  virtual ~Device() = default;
};

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = default;
};

}  // namespace gloo::transport
