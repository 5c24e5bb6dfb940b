// A communication in flight.
#pragma once

#include <functional>
#include <utility>

namespace d9d {

class Work {
 public:
  Work() = default;  // nothing to wait for
  explicit Work(std::function<void()> wait) : wait_(std::move(wait)) {}

  // CPU tensors: returns when the results are ready. CUDA: makes the current stream wait and returns immediately.
  // Throws CommunicationError if the operation failed. Later calls do nothing.
  void wait() {
    if (auto wait = std::exchange(wait_, nullptr)) wait();
  }

 private:
  std::function<void()> wait_;
};

}  // namespace d9d
