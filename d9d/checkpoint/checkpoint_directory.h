// Checkpoints of a job in a folder: save-<step>/ with one safetensors file for each rank that wrote something, and
// manifest.json, which says which box of which tensor is where. A checkpoint loads on any other mesh and number of
// ranks: each rank reads the boxes that it holds there.
//
// Example
//   CheckpointDirectory directory("checkpoints", context.mesh(MeshDomain::kBatch));
//   directory.save(step, state, /*num_to_keep=*/3);
//   ...                                                     // in another job
//   if (const auto found = directory.newest()) found->load(state);
//
// A folder is complete if it is called save-<step>: it is written as save-<step>.tmp and renamed when the manifest is
// on disk, and renamed to save-<step>.gone before it is removed. What a killed job left is ignored and removed by the
// next save. One job at a time writes to a folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/checkpoint/checkpoint_state.h"

namespace d9d {

// A checkpoint on disk, whose manifest was read and checked.
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

  // Collective over `job`. Fills the tensors, all that the checkpoint has whose names begin with `prefix`, in place
  // with the parts that this rank holds, wherever ranks of another job wrote them, and checks the bytes that it reads.
  // Throws on all ranks, before any value changes, StateError unless the checkpoint has exactly these tensors with
  // their shapes and dtypes, and IoError for files that are missing or damaged; IoError after some values have changed,
  // for bytes that are not those that were written.
  void load(const CheckpointState& state, const DeviceMesh& job, const std::string& prefix = "") const;

 private:
  struct Contents;
  std::unique_ptr<Contents> contents_;
};

class CheckpointDirectory {
 public:
  // `job`: all ranks, which see the same file system.
  CheckpointDirectory(std::filesystem::path path, DeviceMesh job) : path_(std::move(path)), job_(std::move(job)) {}

  // Collective. Waits until the checkpoint is on disk on all ranks. Older ones than the num_to_keep newest are removed
  // then; none: all are kept. If a rank cannot write, all throw: that one its error, the others IoError with its
  // reason; there is no checkpoint of this step then, and earlier ones stay.
  void save(std::int64_t step, const CheckpointState& state, std::optional<std::int64_t> num_to_keep) const;

  // Collective. Makes the folder. IoError on all ranks unless the first one can write to it.
  void prepare() const;

  // Local. What is called save-<step> and is no checkpoint: it is neither read nor removed.
  [[nodiscard]] std::vector<std::filesystem::path> others() const;

  // Collective. The complete checkpoint of the highest step, the same on all ranks; none if there is no folder or none
  // in it.
  [[nodiscard]] std::optional<SavedCheckpoint> newest() const;

 private:
  std::filesystem::path path_;
  DeviceMesh job_;
};

}  // namespace d9d
