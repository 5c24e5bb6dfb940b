// Checkpoints of a job in a folder: save-<step>/ with one safetensors file for each rank that wrote something, and
// manifest.json, which lists the file of each box of each tensor. A checkpoint loads on any other mesh and number of
// ranks: each rank then reads the boxes that it holds on that mesh.
//
// Example
//   CheckpointDirectory directory("checkpoints", context.mesh(MeshDomain::kBatch));
//   const auto lock = directory.prepare();
//   directory.save(step, state, {.num_to_keep = 3});
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
#include <set>
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
  // The CheckpointState::rank_values of each rank of the job that saved, in rank order; null for a rank that set none.
  [[nodiscard]] const std::vector<nlohmann::ordered_json>& rank_values() const;

  // Local. The tensors whose names begin with `prefix`, named without the prefix, as load_model_state() takes them.
  // Opens a file when one of its tensors is requested, and verifies checksums of the bytes that are read.
  [[nodiscard]] NamedTensors tensors(const std::string& prefix) const;  // borrows this object

  // Collective over `job`. Reads the values of this rank's parts of state.tensors into place, whichever rank of the
  // saving job wrote them, and verifies checksums of the bytes that it reads. Before any value changes, throws on all
  // ranks: StateError unless the tensors that the ranks have together (job_tensors) are exactly those of the checkpoint
  // whose names begin with `prefix`, with the same shapes and dtypes; IoError for files that are missing or truncated.
  // Throws IoError after some values have changed if bytes do not match their checksums. Returns the number of bytes
  // that this rank has read.
  BytesRead load(const CheckpointState& state, const DeviceMesh& job, const std::string& prefix = "") const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

// Local. The checkpoint that a user's path refers to: the folder of one checkpoint, or the newest in a folder of
// several. None if the path is neither. A manifest.json beside weights of Hugging Face is not taken for a checkpoint.
[[nodiscard]] std::optional<SavedCheckpoint> checkpoint_at(const std::filesystem::path& path);

// Which checkpoints stay when a new one is complete.
struct Retention {
  std::optional<std::int64_t> num_to_keep = {};  // the newest, besides kept_steps; nullopt: all
  std::set<std::int64_t> kept_steps = {};        // never removed, and not counted
};

class CheckpointDirectory {
 public:
  // `job`: all ranks, which must see the same file system. Ranks that differ along its axis "pp", if it has one, may
  // hold different tensors (job_tensors).
  CheckpointDirectory(std::filesystem::path path, DeviceMesh job) : path_(std::move(path)), job_(std::move(job)) {}

  [[nodiscard]] const DeviceMesh& job() const { return job_; }

  // Collective. Makes the folder, and removes remains of a killed job; foreign files, and remains that cannot be
  // removed, stay. Returns, on the first rank, a lock that keeps other jobs from preparing the folder until it is
  // destroyed. Throws IoError on all ranks if the first rank cannot write to the folder, or another job holds the lock.
  [[nodiscard]] std::unique_ptr<FolderLock> prepare() const;

  // Collective. Waits until the checkpoint is on disk on all ranks. Then removes older checkpoints as `retention` says.
  // Returns, on the first rank, which old checkpoints it could not remove and why. If a rank
  // cannot write, that rank throws its error and all others IoError with its reason; this step then has no checkpoint,
  // and earlier checkpoints stay. In the same way all ranks throw StateError if they have saved different tensors, or
  // the values contain bytes or text that is not UTF-8, and ConfigError if values that ranks share are not equal
  // (shared_values.h). CheckpointWriter saves without waiting.
  std::string save(std::int64_t step, const CheckpointState& state, const Retention& retention) const;

  // Local. The folder of the checkpoint of this step in `path`: save-<step>.
  [[nodiscard]] static std::filesystem::path folder_of(const std::filesystem::path& path, std::int64_t step);
  [[nodiscard]] std::map<std::int64_t, std::filesystem::path> complete() const;  // local: checkpoints by step
  // Local. Folders called save-<step> that are not checkpoints; they are neither read nor removed.
  [[nodiscard]] std::map<std::int64_t, std::filesystem::path> others() const;  // by step

  // Collective. The complete checkpoint of the highest step, the same on all ranks; nullopt if there is none.
  [[nodiscard]] std::optional<SavedCheckpoint> newest() const;

  // The parts of save(), each local. Every rank calls make_staging() and writes its files into that folder
  // (write_rank_file); when all ranks have done so, the first rank calls complete() or discard().
  [[nodiscard]] std::filesystem::path make_staging(std::int64_t step) const;
  // Returns which older checkpoints could not be removed and why. If it throws, there is no checkpoint of this step.
  std::string complete(std::int64_t step, const JobTensors& tensors, const nlohmann::ordered_json& values,
                       const Retention& retention) const;
  void discard(std::int64_t step) const;  // does not throw
  // Waits up to `patience` for the files of all ranks; returns whether all have been written.
  [[nodiscard]] bool has_all_files(std::int64_t step, std::chrono::milliseconds patience) const;

 private:
  std::filesystem::path path_;
  DeviceMesh job_;
};

}  // namespace d9d
