// Saves checkpoints while training goes on. A side stream copies the tensors into host memory and a thread writes them
// to disk, so a step waits only before it changes a tensor that has not been copied yet.
//
// Example
//   CheckpointWriter writer(directory, context.device(), /*ranks_of_host=*/8);
//   writer.prepare(state);                                      // allocates host memory on a thread
//   while (...) {
//     ...                                                       // forward, backward
//     writer.wait_for_copies();                                 // before the optimiser changes tensors
//     const SaveProgress all = sum_over_ranks(writer.progress());
//     ...
//     if (const auto ended = writer.advance(all)) log(*ended);
//     if (is_due) writer.begin(step, state, {.num_to_keep = 3});
//   }
//   if (const auto ended = writer.finish()) log(*ended);
//
// One save runs at a time. Each step sums values over ranks anyway; progress() is one of them, so that the ranks learn
// without a further collective when all files are written. Then the first rank writes the manifest and renames the
// folder. If a rank lacks host memory for a copy of the tensors that it saves, begin() writes synchronously on all
// ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/checkpoint/checkpoint_state.h"
#include "d9d/checkpoint/rank_file.h"
#include "d9d/checkpoint/save_progress.h"
#include "d9d/core/device/pinned_memory.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {

// The outcome of a save. step, error and is_refused are the same on all ranks.
struct EndedSave {
  std::int64_t step = 0;
  std::string error = {};        // why there is no checkpoint of this step; empty: there is one
  bool is_refused = false;       // the cause is an UnequalRanksError (shared_values.h), not I/O
  double seconds = 0.0;          // since begin()
  std::string not_removed = {};  // on the first rank: older checkpoints that could not be removed, and why
};

class CheckpointWriter {
 public:
  // `directory`: CheckpointDirectory::prepare() was called for its folder. `ranks_of_host`: how many ranks share the
  // machine's memory.
  CheckpointWriter(CheckpointDirectory directory, c10::Device device, std::int64_t ranks_of_host);
  // Waits until this rank's files are written. If an error has ended training while a save is in flight, the first rank
  // still completes the checkpoint if the other ranks write their files within ten seconds.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Collective. Starts a thread that allocates host memory for saves of these tensors; begin() waits for it. Throws the
  // errors of job_tensors().
  void prepare(const std::map<std::string, DTensor>& tensors);

  // Starts a save; no other may be in flight. When it is complete, older checkpoints are removed as `retention` says.
  // The first call after prepare() is collective, and so is a call whose tensors have other names, shapes, dtypes or
  // layouts than before, which must happen on all ranks in the same call. All other calls are local.
  void begin(std::int64_t step, const CheckpointState& state, const Retention& retention);
  // Local. Makes later work of the current stream, but not the host, wait until the tensors have been copied.
  void wait_for_copies() const { copied_.wait(); }

  [[nodiscard]] bool is_saving() const { return save_ != nullptr; }  // the same on all ranks
  // Returns whether begin() writes synchronously, the same on all ranks; nullopt until the first begin() after
  // prepare().
  [[nodiscard]] std::optional<bool> writes_at_once() const { return writes_at_once_; }
  [[nodiscard]] SaveProgress progress() const;  // of this rank

  // Moves the save forward; every rank calls it once in each step. `all`: the sum over all ranks of progress() in that
  // step. Returns the outcome if the save has ended. Local, except that the call which ends a failed save is
  // collective.
  [[nodiscard]] std::optional<EndedSave> advance(const SaveProgress& all);
  // Collective. Waits until the save has ended and returns its outcome; nullopt if no save is in flight.
  [[nodiscard]] std::optional<EndedSave> finish();

 private:
  struct Save;
  [[nodiscard]] std::unique_ptr<PinnedMemory> make_memory(std::int64_t num_bytes) const;
  void receive_memory();
  void copy(const CheckpointState& state);
  void start_commit();
  [[nodiscard]] EndedSave ended(const std::string& error, bool is_refused = false);

  CheckpointDirectory directory_;
  c10::Device device_;
  std::int64_t ranks_of_host_;
  SideStream copies_;
  JobTensors tensors_;  // of all ranks, for plan_
  std::unique_ptr<const RankFilePlan> plan_;
  std::future<std::unique_ptr<PinnedMemory>> memory_in_the_making_;
  std::unique_ptr<PinnedMemory> memory_;
  std::optional<bool> writes_at_once_;
  StreamEvent copied_;
  std::unique_ptr<Save> save_;  // null: no save is in flight
};

}  // namespace d9d
