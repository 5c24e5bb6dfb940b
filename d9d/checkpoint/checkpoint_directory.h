// Saves and loads the checkpoints of a job in a folder. A checkpoint is a folder save-<step>/ with one safetensors file
// for each rank that wrote something, and manifest.json, which says in which file each box of a tensor is. It loads on
// any other mesh and number of ranks: each rank reads the elements that it holds on the new mesh.
//
// Example
//   CheckpointDirectory directory("checkpoints", context.mesh(MeshDomain::kBatch));
//   const auto lock = directory.prepare();
//   directory.save(step, state, {.num_to_keep = 3});
//   ...                                                     // in another job
//   if (const auto found = directory.newest()) found->load(state, directory.job());
//
// A folder called save-<step> with a manifest.json is a complete checkpoint: it is written as save-<step>.tmp and
// renamed when the manifest is on disk, and renamed to save-<step>.gone before it is removed. Remains of a killed job
// are ignored, and removed by prepare(). A lock on the folder ensures that only one job at a time writes to it.
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
  // Local. Throws IoError, naming the file, if the manifest is missing, damaged or of another format version. Throws
  // IoError, naming the folder, if the manifest has another step than the folder's name.
  explicit SavedCheckpoint(const std::filesystem::path& folder);
  ~SavedCheckpoint();
  SavedCheckpoint(SavedCheckpoint&&) noexcept;
  SavedCheckpoint& operator=(SavedCheckpoint&&) noexcept;

  [[nodiscard]] const std::filesystem::path& folder() const;
  [[nodiscard]] std::int64_t step() const;
  [[nodiscard]] const nlohmann::ordered_json& values() const;  // CheckpointState::values
  // Returns what CheckpointState::rank_values() returned on each rank of the job that saved, in rank order; null for a
  // rank without that function.
  [[nodiscard]] const std::vector<nlohmann::ordered_json>& rank_values() const;

  // Local. Returns the tensors whose names begin with `prefix`, named without the prefix, for load_model_state(). Opens
  // a file when one of its tensors is requested, and verifies checksums of the bytes that are read.
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

// Local. Returns the checkpoint that a user's path refers to. The path may be the folder of one checkpoint, or a folder
// of several, of which the newest is returned; nullopt if it is neither. A Hugging Face folder of weights does not
// count as a checkpoint, even if it has a manifest.json.
[[nodiscard]] std::optional<SavedCheckpoint> checkpoint_at(const std::filesystem::path& path);

// Which checkpoints stay when a new one is complete.
struct Retention {
  std::optional<std::int64_t> num_to_keep = {};  // how many of the newest stay, besides kept_steps; nullopt: all
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

  // Collective. Writes the checkpoint of a step, and returns when it is complete on disk. Then removes older
  // checkpoints as `retention` says, and returns, on the first rank, which of them it could not remove and why. After
  // an error this step has no checkpoint, and earlier checkpoints stay. Throws StateError on all ranks if ranks have
  // different tensors. Other errors come from one rank, and all others throw IoError with its reason: an error of
  // writing, StateError if the values contain bytes or text that is not UTF-8, ConfigError if values that ranks share
  // differ (shared_values.h). CheckpointWriter saves without waiting.
  std::string save(std::int64_t step, const CheckpointState& state, const Retention& retention) const;

  // Local. Returns the folder that the checkpoint of a step has in `path`: save-<step>.
  [[nodiscard]] static std::filesystem::path folder_of(const std::filesystem::path& path, std::int64_t step);
  [[nodiscard]] std::map<std::int64_t, std::filesystem::path> complete() const;  // local: checkpoints by step
  // Local. Returns the files and folders called save-<step> that are not checkpoints. The library neither reads nor
  // removes them.
  [[nodiscard]] std::map<std::int64_t, std::filesystem::path> others() const;  // by step

  // Collective. Returns the complete checkpoint of the highest step, the same on all ranks; nullopt if there is none.
  [[nodiscard]] std::optional<SavedCheckpoint> newest() const;

  // The next four are local: the steps of a save, for save() and CheckpointWriter. Every rank writes its files
  // (write_rank_file) into the folder that make_staging() creates and returns. Then the first rank calls complete() if
  // all ranks succeeded, and discard() if one failed.
  [[nodiscard]] std::filesystem::path make_staging(std::int64_t step) const;
  // Writes the manifest, and returns which older checkpoints could not be removed and why. If it throws, there is no
  // checkpoint of this step.
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
