// Writes and reads manifest.json of a checkpoint, which lists its tensors and holds its small values.
//
//   {"checksum": "a1b2...", "format": 5, "step": 100, "values": {...}, "ranks": [...],
//    "tensors": {"model.norm.weight": {"dtype": "Float", "shape": [8], "boxes": [
//      {"file": "rank-0.safetensors", "entry": "model.norm.weight@0", "start": [0], "sizes": [4],
//       "checksums_at": 0, "checksum": "78af5f94892f3950"}]}}}
//
// The first "checksum" is XXH3 of the other fields as nlohmann::json::dump() writes them. The checksums of a box's
// blocks begin at byte checksums_at of rank-0.checksums; the box's "checksum" is the XXH3 of these checksums.
// json_numbers.h says how NaN and infinities are written.
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
  nlohmann::json boxes;                             // [{"tensor": name, "dtype": name, "box": {"file", ...}}, ...]
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
  std::string dtype;  // name in LibTorch, such as "Float"
  std::vector<std::int64_t> shape;
  std::vector<SavedBox> boxes;
};
struct Manifest {
  std::int64_t step = 0;
  nlohmann::ordered_json values;
  std::vector<nlohmann::ordered_json> rank_values;  // by rank of the job that saved
  std::map<std::string, SavedTensor> tensors;
};

// Writes the manifest. `notes`: one of each rank, in rank order. Throws StateError, before it creates the file, unless
// their boxes together cover each tensor exactly once: otherwise ranks have saved different tensors.
void write_manifest(const std::filesystem::path& folder, std::int64_t step, const JobTensors& tensors,
                    const nlohmann::ordered_json& values, const std::vector<RankNote>& notes);

// Reads the manifest of a checkpoint. Throws IoError, naming the file, if it is missing or invalid: another format,
// boxes that overlap or lie outside their tensor, files outside the folder.
[[nodiscard]] Manifest read_manifest(const std::filesystem::path& folder);

// Parses the text of a manifest, with the errors of read_manifest(), which name `path`.
[[nodiscard]] Manifest parse_manifest(const std::string& text, const std::filesystem::path& path);

// Throws StateError, listing the names that differ, unless `tensors` are exactly those tensors of the manifest whose
// names begin with `prefix`, with the same dtypes and shapes.
void check_tensors(const Manifest& manifest, const JobTensors& tensors, const std::string& prefix,
                   const std::filesystem::path& folder);

}  // namespace d9d
