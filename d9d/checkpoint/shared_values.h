// Compares values that several ranks hold and a checkpoint stores once, written by any one of the ranks: replicas of a
// parameter, buffers, counters of an optimiser, the position in the data. If the ranks' values differ, a job that
// resumes would not continue the same training; so the first rank compares them before it completes a checkpoint.
//
// Example
//   const SharedValues shared(state, all, job, copies);            // on each rank; in flight from the device
//   write_rank_file(folder, rank, plan, values, rank_values, shared.wait());
//   check_shared_values(read_rank_notes(folder, num_ranks));       // on the first rank: UnequalRanksError
//
// Tensors are compared by a sum of their bytes that the device computes: this reads each tensor that several ranks hold
// once, and needs no communication.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/checkpoint/checkpoint_state.h"
#include "d9d/checkpoint/job_tensors.h"
#include "d9d/checkpoint/manifest.h"
#include "d9d/core/device/host_copy.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {

// Ranks hold different values of one thing. The cause is not a disk: the next save would fail too.
struct UnequalRanksError : ConfigError {
  using ConfigError::ConfigError;
};

class SharedValues {
 public:
  // Local. `all`: job_tensors() of the state. Sums of CheckpointState::buffers are computed on the current stream, and
  // the others on `copies`, after all work that is on the current stream now. The tensors must not be written until
  // `copies` has passed that point.
  SharedValues(const CheckpointState& state, const JobTensors& all, const DeviceMesh& job, const SideStream& copies);
  // The same on a stream of its own, for a caller that waits immediately.
  SharedValues(const CheckpointState& state, const JobTensors& all, const DeviceMesh& job);

  // Waits for the device. Called once, by any thread.
  [[nodiscard]] nlohmann::json wait() const;

 private:
  struct Sums {
    nlohmann::json entries = nlohmann::json::array();  // without their sums
    std::vector<at::Tensor> columns = {};
    std::vector<HostCopy> sums = {};  // one of [number of entries], or none
    void add(const std::string& name, const LocalBox& box, const at::Tensor& values, bool is_buffer);
    void finish(const SideStream& copies);
  };

  nlohmann::json values_ = nlohmann::json::array();  // of CheckpointState::equal_values
  std::vector<Sums> sums_;
};

// Local. Throws UnequalRanksError, naming the value and two ranks, if the notes show different values of one thing.
void check_shared_values(const std::vector<RankNote>& notes);

// Collective. The same for the values that the ranks hold now; for use before an export, which also stores them once.
void check_shared_values(const CheckpointState& state, const DeviceMesh& job);

}  // namespace d9d
