// Holds the current stream of a device: what is queued behind it runs when it is opened, or after half a minute, so
// that a host which waits for it does not hang. It must be opened, and that work awaited, before it ends.
//
// Example
//   StreamGate gate(device);
//   y.add_(1);                       // waits
//   gate.open();
#pragma once

#include <dlfcn.h>

#include <chrono>
#include <semaphore>

#include <c10/core/Device.h>
#include <gtest/gtest.h>

#include "d9d/core/device/cuda_stream.h"

namespace d9d::test {

class StreamGate {
 public:
  explicit StreamGate(c10::Device device) {
    using LaunchHostFunction = int (*)(CUstream_st*, void (*)(void*), void*);
    const auto launch =
        reinterpret_cast<LaunchHostFunction>(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuLaunchHostFunc"));
    const auto wait = [](void* gate) {
      (void)static_cast<StreamGate*>(gate)->opened_.try_acquire_for(std::chrono::seconds(30));
    };
    EXPECT_EQ(launch(current_cuda_stream(device), wait, this), 0);
  }
  StreamGate(const StreamGate&) = delete;
  StreamGate& operator=(const StreamGate&) = delete;
  void open() { opened_.release(); }

 private:
  std::binary_semaphore opened_{0};
};

}  // namespace d9d::test
