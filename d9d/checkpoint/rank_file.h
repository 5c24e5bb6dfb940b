// The files that each rank writes for a checkpoint: a safetensors file with its boxes, a file with the checksums of
// their blocks, and a note that lists the boxes, which exists until the manifest contains it.
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

// The boxes that a rank writes, in the order of its file. Computed once for all saves of a job.
class RankFilePlan {
 public:
  // Throws the errors of boxes_of_rank(), and StateError for dtypes that safetensors files cannot store.
  RankFilePlan(const std::map<std::string, DTensor>& tensors, const JobTensors& all, const DeviceMesh& job);

  // Whether the plan was made for tensors of the same names, shapes, dtypes and layouts.
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

// Gives the values of a box: a contiguous tensor on the CPU.
using BoxValues = std::function<at::Tensor(const PlannedBox&)>;
// Reads boxes from `tensors`, which are borrowed; each call copies one box to the host.
[[nodiscard]] BoxValues host_values_in(const std::map<std::string, DTensor>& tensors);

// Local. Writes rank-<rank>.safetensors and rank-<rank>.checksums (neither if the plan has no boxes), and after them
// the note rank-<rank>.cbor. rank_values: CheckpointState::rank_values() of this rank. shared: the array that
// SharedValues::wait() returned.
void write_rank_file(const std::filesystem::path& folder, std::int64_t rank, const RankFilePlan& plan,
                     const BoxValues& values, const nlohmann::json& rank_values, const nlohmann::json& shared);

// Local. Whether the notes of all ranks exist, so all ranks have written their files.
[[nodiscard]] bool has_rank_notes(const std::filesystem::path& folder, std::int64_t num_ranks);
// Local. The notes of all ranks. Throws IoError, naming the file, if a note is missing or damaged, or its safetensors
// file or checksums are missing.
[[nodiscard]] std::vector<RankNote> read_rank_notes(const std::filesystem::path& folder, std::int64_t num_ranks);
void remove_rank_notes(const std::filesystem::path& folder, std::int64_t num_ranks);

// Local. Locates saved boxes in rank files, whose headers are read when first needed.
class RankFiles {
 public:
  explicit RankFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Where a box of a tensor and its checksums are stored. Throws IoError unless its file holds the box with the dtype
  // and shape of the manifest, and the file of checksums exists.
  [[nodiscard]] StoredTensor find(const std::string& tensor, const SavedTensor& saved, const SavedBox& box);
  // The reads that fill this rank's part of a tensor. Opens only the files that hold elements of this part.
  [[nodiscard]] std::vector<BoxRead> reads_of(const std::string& name, const DTensor& tensor, const SavedTensor& saved);
  // A source of the whole tensor, assembled from its boxes in all files.
  [[nodiscard]] TensorSource source_of(const std::string& name, const SavedTensor& saved);

 private:
  [[nodiscard]] const SafetensorsFile& open(const std::string& file);

  std::filesystem::path folder_;
  std::map<std::string, SafetensorsFile> files_;
};

}  // namespace d9d
