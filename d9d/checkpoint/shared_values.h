// Compares values that several ranks hold and that only one of them writes into a checkpoint: replicas of a parameter,
// buffers, counters of an optimiser, the position in the data. If these values differ between ranks, a resumed job
// would not continue the same training, so the first rank compares them before it completes a checkpoint.
//
// Example
//   const SharedValues shared(state, all, job, copies);            // on each rank; does not wait for the device
//   write_rank_file(folder, rank, plan, values, rank_values, shared.wait());
//   check_shared_values(read_rank_notes(folder, num_ranks));       // on the first rank: UnequalRanksError
//
// For each tensor that several ranks hold, the device computes a checksum of its bytes, which reads the tensor once.
// The checksums are written into the rank notes, so the comparison needs no communication.
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

// Thrown if ranks hold different values of something that a checkpoint stores once. The next save would fail too.
struct UnequalRanksError : ConfigError {
  using ConfigError::ConfigError;
};

class SharedValues {
 public:
  // Local. `all`: job_tensors() of the state. The checksums of CheckpointState::buffers are computed on the current
  // stream, and those of all other tensors on `copies`, after the work that the current stream has so far. Nothing may
  // write these other tensors until `copies` has computed their checksums.
  SharedValues(const CheckpointState& state, const JobTensors& all, const DeviceMesh& job, const SideStream& copies);
  // Uses a stream of its own instead of `copies`, for a caller that calls wait() immediately.
  SharedValues(const CheckpointState& state, const JobTensors& all, const DeviceMesh& job);

  // Waits for the device. Returns the array RankNote::shared for this rank. Call it once, on any thread.
  [[nodiscard]] nlohmann::json wait() const;

 private:
  struct Sums {
    nlohmann::json entries = nlohmann::json::array();  // one for each of `columns`, without "sum"
    std::vector<at::Tensor> columns = {};
    std::vector<HostCopy> sums = {};  // one int64 tensor of [number of entries]; empty if there are no entries
    void add(const std::string& name, const LocalBox& box, const at::Tensor& values, bool is_buffer);
    void finish(const SideStream& copies);
  };

  nlohmann::json values_ = nlohmann::json::array();  // entries of CheckpointState::equal_values
  std::vector<Sums> sums_;
};

// Local. Throws UnequalRanksError, naming the value and two ranks, if the notes of two ranks have different values for
// one key.
void check_shared_values(const std::vector<RankNote>& notes);

// Collective. Compares the values that the ranks hold now, and throws UnequalRanksError on all ranks if they differ.
// For use before an export, which stores one copy of them for all ranks.
void check_shared_values(const CheckpointState& state, const DeviceMesh& job);

}  // namespace d9d
