// manifest.json of a checkpoint.
//
//   {"checksum": "a1b2...", "format": 5, "step": 100, "values": {...}, "ranks": [...],
//    "tensors": {"model.norm.weight": {"dtype": "Float", "shape": [8], "boxes": [
//      {"file": "rank-0.safetensors", "entry": "model.norm.weight@0", "start": [0], "sizes": [4],
//       "checksums_at": 0, "checksum": "78af5f94892f3950"}]}}}
//
// The first "checksum" is XXH3 of the other fields as nlohmann::json::dump() writes them. The checksums of a box's
// blocks begin at byte checksums_at of rank-0.checksums; the box's "checksum" is of these. NaN and infinities:
// json_numbers.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/checkpoint/job_tensors.h"
#include "d9d/core/dtensor/layout.h"

namespace d9d {

inline constexpr const char* kManifestName = "manifest.json";

// What a rank reports to the rank that writes the manifest.
struct RankNote {
  nlohmann::json boxes;                             // [{"tensor": name, "dtype": of this rank, "box": as above}, ...]
  nlohmann::json values;                            // CheckpointState::rank_values
  nlohmann::json shared = nlohmann::json::array();  // SharedValues::wait()
};

struct SavedBox {
  std::string file;  // in the checkpoint's folder
  std::string entry;
  LocalBox box;
  std::int64_t checksums_at = 0;  // BlockChecksums::offset
  std::string checksum;           // BlockChecksums::checksum
};
struct SavedTensor {
  std::string dtype;  // LibTorch's name
  std::vector<std::int64_t> shape;
  std::vector<SavedBox> boxes;
};
struct Manifest {
  std::int64_t step = 0;
  nlohmann::ordered_json values;
  std::vector<nlohmann::ordered_json> rank_values;  // by rank of the job that saved
  std::map<std::string, SavedTensor> tensors;
};

// `notes`: those of all ranks, in rank order; their boxes must together make up the tensors. Throws StateError before a
// file is made if they do not, because ranks have saved different tensors.
void write_manifest(const std::filesystem::path& folder, std::int64_t step, const JobTensors& tensors,
                    const nlohmann::ordered_json& values, const std::vector<RankNote>& notes);

// Throws IoError, naming the file, if it is not a valid manifest: another format, boxes that overlap or lie outside
// their tensor, files outside the folder.
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& folder);

// The same from the text of the file; `path` is for messages.
[[nodiscard]] Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

// Throws StateError that lists names unless the tensors of the manifest whose names begin with `prefix` are exactly
// `tensors`, with their dtypes and shapes.
void check_tensors(const Manifest& manifest, const JobTensors& tensors, const std::string& prefix,
                   const std::filesystem::path& folder);

}  // namespace d9d
