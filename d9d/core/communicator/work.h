// A communication that was started.
#pragma once

#include <functional>
#include <utility>

namespace d9d {

class Work {
 public:
  Work() = default;  // nothing to wait for
  explicit Work(std::function<void()> wait) : wait_(std::move(wait)) {}

  // CPU tensors: returns when the results are there. CUDA: makes the current stream wait and returns at once.
  // Throws CommunicationError if the operation failed. Later calls return at once.
  void wait() {
    if (auto wait = std::exchange(wait_, nullptr)) wait();
  }

 private:
  std::function<void()> wait_;
};

}  // namespace d9d
