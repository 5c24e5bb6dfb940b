// Writes and reads the files of each rank in a checkpoint: a safetensors file with the boxes that the rank writes
// (box_owners.h), a file with checksums of the boxes' blocks, and a note that lists the boxes. The note is removed when
// its content is in the manifest.
//
// Example
//   const RankFilePlan plan(state.tensors, job_tensors(state.tensors, job), job);
//   write_rank_file(folder, job.index(), plan, host_values_in(state.tensors), /*rank_values=*/nullptr, shared.wait());
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/checkpoint/box_owners.h"
#include "d9d/checkpoint/manifest.h"
#include "d9d/model_state/io/safetensors.h"

namespace d9d {

struct PlannedBox {
  OwnedBox owned;
  at::ScalarType dtype;
  std::int64_t offset;  // bytes from the end of the file's header; a multiple of the element size
  std::string entry;    // name of the box in the file
};

// The boxes that a rank writes, in their order in its file. CheckpointWriter computes it once for all saves of the same
// tensors.
class RankFilePlan {
 public:
  // Throws the errors of boxes_of_rank(), and StateError for dtypes that safetensors files cannot store.
  RankFilePlan(const std::map<std::string, DTensor>& tensors, const JobTensors& all, const DeviceMesh& job);

  // Returns whether the plan is for tensors with the names, shapes, dtypes and layouts of `tensors`.
  [[nodiscard]] bool is_of(const std::map<std::string, DTensor>& tensors) const;

  [[nodiscard]] const std::vector<PlannedBox>& boxes() const { return boxes_; }
  [[nodiscard]] const std::string& header() const { return header_; }
  [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }  // without the header

 private:
  std::map<std::string, DTensor> layouts_;  // the planned tensors, on the meta device
  std::vector<PlannedBox> boxes_;
  std::string header_;
  std::int64_t num_bytes_ = 0;
};

// A function that returns the values of a box as a contiguous tensor on the CPU.
using BoxValues = std::function<at::Tensor(const PlannedBox&)>;
// Returns a function that copies a box of `tensors` to the host at each call. `tensors` is borrowed.
[[nodiscard]] BoxValues host_values_in(const std::map<std::string, DTensor>& tensors);

// Local. Writes rank-<rank>.safetensors and rank-<rank>.checksums (neither if the plan has no boxes), and after them
// the note rank-<rank>.cbor. rank_values: what CheckpointState::rank_values() returned on this rank. shared: the array
// that SharedValues::wait() returned.
void write_rank_file(const std::filesystem::path& folder, std::int64_t rank, const RankFilePlan& plan,
                     const BoxValues& values, const nlohmann::json& rank_values, const nlohmann::json& shared);

// Local. Returns whether the notes of all ranks exist, which means that all ranks have written their files.
[[nodiscard]] bool has_rank_notes(const std::filesystem::path& folder, std::int64_t num_ranks);
// Local. Returns the notes of all ranks, in rank order. Throws IoError, naming the file, if a note is missing or
// damaged, or if its safetensors file or checksums are missing.
[[nodiscard]] std::vector<RankNote> read_rank_notes(const std::filesystem::path& folder, std::int64_t num_ranks);
void remove_rank_notes(const std::filesystem::path& folder, std::int64_t num_ranks);

// Local. Locates saved boxes in rank files, whose headers are read when first needed.
class RankFiles {
 public:
  explicit RankFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Returns where a box of a tensor and its checksums are stored. Throws IoError unless its file holds the box with the
  // dtype and shape of the manifest, and the file of checksums exists.
  [[nodiscard]] StoredTensor find(const std::string& tensor, const SavedTensor& saved, const SavedBox& box);
  // Returns the reads that fill this rank's part of a tensor. Opens only the files that hold elements of this part.
  [[nodiscard]] std::vector<BoxRead> reads_of(const std::string& name, const DTensor& tensor, const SavedTensor& saved);
  // Returns a source that assembles the whole tensor from its boxes in all files.
  [[nodiscard]] TensorSource source_of(const std::string& name, const SavedTensor& saved);

 private:
  [[nodiscard]] const SafetensorsFile& open(const std::string& file);

  std::filesystem::path folder_;
  std::map<std::string, SafetensorsFile> files_;
};

}  // namespace d9d
