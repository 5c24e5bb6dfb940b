// Checkpoints of a job in a folder: save-<step>/ with one safetensors file for each rank that wrote something, and
// manifest.json, which says which box of which tensor is where. A checkpoint loads on any other mesh and number of
// ranks: each rank reads the boxes that it holds there.
//
// Example
//   CheckpointDirectory directory("checkpoints", context.mesh(MeshDomain::kBatch));
//   const auto lock = directory.prepare();
//   directory.save(step, state, /*num_to_keep=*/3);
//   ...                                                     // in another job
//   if (const auto found = directory.newest()) found->load(state);
//
// A folder called save-<step> is a complete checkpoint: it is written as save-<step>.tmp and renamed when the manifest
// is on disk, and renamed to save-<step>.gone before it is removed. Remains of a killed job are ignored, and removed by
// prepare(). A lock on the folder ensures that only one job at a time writes to it.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/io/folder_lock.h"
#include "d9d/checkpoint/checkpoint_state.h"
#include "d9d/checkpoint/job_tensors.h"
#include "d9d/model_state/io/box_reader.h"
#include "d9d/model_state/mapped_sources.h"

namespace d9d {

// A checkpoint on disk. Its manifest has been read and checked.
class SavedCheckpoint {
 public:
  // Local. Throws IoError that names the file for a manifest that is missing, damaged, of another version or of another
  // step than the folder's name says.
  explicit SavedCheckpoint(const std::filesystem::path& folder);
  ~SavedCheckpoint();
  SavedCheckpoint(SavedCheckpoint&&) noexcept;
  SavedCheckpoint& operator=(SavedCheckpoint&&) noexcept;

  [[nodiscard]] const std::filesystem::path& folder() const;
  [[nodiscard]] std::int64_t step() const;
  [[nodiscard]] const nlohmann::ordered_json& values() const;  // CheckpointState::values
  // CheckpointState::rank_values by rank of the job that saved; null where it set none.
  [[nodiscard]] const std::vector<nlohmann::ordered_json>& rank_values() const;

  // Local. The tensors whose names begin with `prefix`, by the rest of their names: for load_model_state(). Opens a
  // file when one of its tensors is requested, and verifies checksums of the bytes that are read.
  [[nodiscard]] NamedTensors tensors(const std::string& prefix) const;  // borrows this

  // Collective over `job`. Fills the tensors, all that the checkpoint has whose names begin with `prefix`, in place
  // with the parts that this rank holds, whichever rank of the saving job wrote them, and verifies checksums of the
  // bytes that it reads. Throws on all ranks, before any value changes, StateError unless the checkpoint has exactly
  // the tensors that the ranks have together (job_tensors), with their shapes and dtypes, and IoError for files that
  // are missing or truncated. Throws IoError after some values have changed if bytes do not match their checksums.
  // Returns the number of bytes that this rank has read.
  BytesRead load(const CheckpointState& state, const DeviceMesh& job, const std::string& prefix = "") const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// Local. The checkpoint that a user's path refers to: the folder of one checkpoint, or the newest in a folder of
// several. None if the path is neither. A manifest.json beside weights of Hugging Face is not taken for a checkpoint.
[[nodiscard]] std::optional<SavedCheckpoint> checkpoint_at(const std::filesystem::path& path);

class CheckpointDirectory {
 public:
  // `job`: all ranks, which see the same file system. Ranks along its axis "pp", if it has one, may hold other tensors
  // (job_tensors).
  CheckpointDirectory(std::filesystem::path path, DeviceMesh job) : path_(std::move(path)), job_(std::move(job)) {}

  [[nodiscard]] const DeviceMesh& job() const { return job_; }

  // Collective. Makes the folder, and removes remains of a killed job; foreign files, and remains that cannot be
  // removed, stay. Returns, on the first rank, a lock that keeps other jobs from preparing the folder until it is
  // destroyed. Throws IoError on all ranks if the first rank cannot write to the folder, or another job holds the lock.
  [[nodiscard]] std::unique_ptr<FolderLock> prepare() const;

  // Collective. Waits until the checkpoint is on disk on all ranks. Then checkpoints other than the num_to_keep newest
  // are removed; if it is none, all are kept. Returns, on the first rank, which of them could not be removed and why.
  // If a rank cannot write, all ranks throw: that one its error, the others IoError with its reason; there is no
  // checkpoint of this step then, and earlier ones stay. In the same way all ranks throw StateError if they have saved
  // different tensors, or the values contain bytes or text that is not UTF-8, and ConfigError if values that ranks
  // share are not equal (shared_values.h). CheckpointWriter saves without waiting.
  std::string save(std::int64_t step, const CheckpointState& state, std::optional<std::int64_t> num_to_keep) const;

  [[nodiscard]] std::map<std::int64_t, std::filesystem::path> complete() const;  // local: checkpoints by step
  // Local. Folders called save-<step> that are not checkpoints; they are neither read nor removed.
  [[nodiscard]] std::map<std::int64_t, std::filesystem::path> others() const;  // by step

  // Collective. The complete checkpoint of the highest step, the same on all ranks; none if there is no folder or none
  // in it.
  [[nodiscard]] std::optional<SavedCheckpoint> newest() const;

  // The parts of a save, each local. Every rank calls make_staging() and writes its files there (write_rank_file); when
  // all ranks have done so, the first rank completes the checkpoint, or discards the files.
  [[nodiscard]] std::filesystem::path make_staging(std::int64_t step) const;
  // Returns which older checkpoints could not be removed and why. If it throws, there is no checkpoint of this step.
  std::string complete(std::int64_t step, const JobTensors& tensors, const nlohmann::ordered_json& values,
                       std::optional<std::int64_t> num_to_keep) const;
  void discard(std::int64_t step) const;  // does not throw
  // Waits up to `patience` for the files of all ranks; returns whether all have been written.
  [[nodiscard]] bool has_all_files(std::int64_t step, std::chrono::milliseconds patience) const;

 private:
  std::filesystem::path path_;
  DeviceMesh job_;
};

}  // namespace d9d
