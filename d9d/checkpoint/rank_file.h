// The safetensors files of a checkpoint, one for each rank that wrote something.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/checkpoint/box_owners.h"
#include "d9d/checkpoint/manifest.h"
#include "d9d/model_state/io/safetensors.h"

namespace d9d {

// Local. Writes the boxes to rank-<rank>.safetensors, and returns what the manifest says of them. No file without
// boxes.
[[nodiscard]] nlohmann::json write_rank_file(const std::filesystem::path& folder, std::int64_t rank,
                                             const std::vector<OwnedBox>& boxes);

// Local. Opens files when they are needed, and reads of them what this rank holds.
class RankFiles {
 public:
  explicit RankFiles(std::filesystem::path folder) : folder_(std::move(folder)) {}

  // Throws IoError unless the entries that this rank needs are there with the manifest's shapes. Reads no values.
  void check(const std::string& name, const DTensor& tensor, const SavedTensor& saved);
  // Copies this rank's part. Throws IoError that names file and tensor if a block that it reads is not what was
  // written.
  void read(const std::string& name, const DTensor& tensor, const SavedTensor& saved);

 private:
  const SafetensorsFile& file(const std::string& name);

  std::filesystem::path folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace d9d
