// A model as a folder in the layout of the Hugging Face hub: config.json beside model.safetensors, or beside shards
// model-00001-of-00003.safetensors that model.safetensors.index.json lists.
//
// Example
//   const d9d::HuggingFaceDirectory directory("Qwen3-0.6B");
//   const auto embedding = directory.find("model.embed_tokens.weight");   // a TensorSource; nothing is read yet
//   d9d::write_huggingface_directory("export", config, tensors, {.max_shard_bytes = std::int64_t{4} << 30});
//
// Local, blocking; one thread an object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/model_state/tensor_source.h"

namespace d9d {

class SafetensorsFile;

class HuggingFaceDirectory {
 public:
  // Reads the index, or the header of a single file (which goes first, as in transformers). IoError when there is
  // neither or the index is no map from names to files of this folder. Shards are opened when a tensor of theirs is
  // asked for.
  explicit HuggingFaceDirectory(std::filesystem::path path);

  // config.json. IoError when it is missing or no JSON object.
  [[nodiscard]] nlohmann::json read_config() const;

  // The tensors, sorted.
  [[nodiscard]] std::vector<std::string> names() const;

  // Where a tensor is and how to read it, a view of the mapped file; nothing when no file has that name. IoError when
  // the shard is missing or damaged, or the index says that it holds a tensor that it does not.
  [[nodiscard]] std::optional<TensorSource> find(const std::string& name) const;

 private:
  const std::shared_ptr<SafetensorsFile>& open(const std::string& file) const;

  std::filesystem::path path_;
  std::map<std::string, std::string> file_of_tensor_;
  mutable std::map<std::string, std::shared_ptr<SafetensorsFile>> open_files_;
};

struct HuggingFaceWriteOptions {
  // Data bytes a shard at most; a larger tensor gets a shard to itself. Null: one file model.safetensors and no index.
  std::optional<std::int64_t> max_shard_bytes;
};

// Throws as write_huggingface_directory would before it writes: for programs that train for hours before they export.
void check_huggingface_target(const std::filesystem::path& path);

// Writes config.json and the tensors, shards in the given order, reading the sources one at a time. The folder appears
// whole (AtomicDirectory) and replaces an earlier export; a folder that holds any other file is refused with IoError
// before a tensor is read. StateError as for write_safetensors.
void write_huggingface_directory(const std::filesystem::path& path, const nlohmann::json& config,
                                 const std::vector<TensorSource>& tensors, const HuggingFaceWriteOptions& options = {});

}  // namespace d9d
