// The part of a training step that knows the types of the task: fetches a pack, and runs forward and backward on it.
#pragma once

#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/loop/step/gradient_manager.h"
#include "d9d/metrics/metric.h"

namespace d9d {

class PackRunner {
 public:
  virtual ~PackRunner() = default;
  // Fetches the next pack; false at the end of the data.
  [[nodiscard]] virtual bool fetch() = 0;
  // The number of microbatches of the pack that fetch() gets next, if that was read already; 0 otherwise.
  [[nodiscard]] virtual std::int64_t num_next() const = 0;
  // Called with num_next() of each rank.
  virtual void tell_next(const std::vector<std::int64_t>& of_ranks) = 0;
  // Runs forward and backward of the fetched pack and adds its losses and gradients to `gradients`. Returns the number
  // of its tokens.
  virtual std::int64_t run(GradientManager& gradients) = 0;
  // The position in the data after the packs that were fetched so far: PackStream::state().
  [[nodiscard]] virtual nlohmann::json data_state() const = 0;
  [[nodiscard]] virtual nlohmann::json task_state() const = 0;  // TrainTask::state()
};

}  // namespace d9d
