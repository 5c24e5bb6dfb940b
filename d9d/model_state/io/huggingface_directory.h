// A model as a folder in the layout of the Hugging Face hub: config.json and either model.safetensors or shards
// model-00001-of-00003.safetensors, which model.safetensors.index.json lists.
//
// Example
//   const d9d::HuggingFaceDirectory directory("Qwen3-0.6B");
//   const auto embedding = directory.find("model.embed_tokens.weight");   // a TensorSource; nothing is read yet
//   d9d::write_huggingface_directory("export", config, tensors, {.max_shard_bytes = std::int64_t{4} << 30});
//
// Local, blocking; each object may be used by one thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/base/io/atomic_directory.h"
#include "d9d/base/io/folder_lock.h"
#include "d9d/model_state/tensor_source.h"

namespace d9d {

class SafetensorsFile;

// Whether the folder has weights or an index of such names.
[[nodiscard]] bool is_huggingface_directory(const std::filesystem::path& path);

// The file of the folder that HuggingFaceDirectory does not read because it has model.safetensors too: an index of
// shards, perhaps of other weights. none: there is no such file.
[[nodiscard]] std::optional<std::string> ignored_index(const std::filesystem::path& path);

class HuggingFaceDirectory {
 public:
  // Reads the index, or the header of a single file (which takes precedence, as in transformers). Throws IoError if
  // there is neither, naming weights in other formats that the folder has, or if the index is not a map from names to
  // files of this folder. A shard is opened when one of its tensors is first requested.
  explicit HuggingFaceDirectory(std::filesystem::path path);

  // Reads config.json. Throws IoError if it is missing or not a JSON object. Where has_untied_head(),
  // tie_word_embeddings is false, as transformers takes it.
  [[nodiscard]] nlohmann::json read_config() const;
  // Whether config.json ties the head to the embedding, and the folder has a head with other values. Reads both tensors
  // if they are there.
  [[nodiscard]] bool has_untied_head() const;

  // The names of the tensors, sorted.
  [[nodiscard]] std::vector<std::string> names() const;

  // A source that reads the tensor as a view of the mapped file; none if no file has a tensor of that name. Throws
  // IoError if the shard is missing or damaged, does not hold a tensor that the index assigns to it, or holds one that
  // the index lacks.
  [[nodiscard]] std::optional<TensorSource> find(const std::string& name) const;

 private:
  [[nodiscard]] bool has_untied_head(const nlohmann::json& config) const;
  const std::shared_ptr<SafetensorsFile>& open(const std::string& file) const;

  std::filesystem::path path_;
  std::map<std::string, std::string> file_of_tensor_;
  mutable std::map<std::string, std::shared_ptr<SafetensorsFile>> open_files_;
};

// model-00001-of-00003.safetensors for index 0 of 3; of one shard, model.safetensors.
[[nodiscard]] std::string huggingface_shard_name(std::size_t index, std::size_t num_shards);

// Which shard each of several items goes to, in order: a shard is full where the next item would take it beyond
// `max_shard_bytes`. A larger item gets its own.
[[nodiscard]] std::vector<std::size_t> shard_of_each(const std::vector<std::int64_t>& bytes,
                                                     std::int64_t max_shard_bytes);

// A folder that is being written; writers put shards into staging().
class HuggingFaceExport {
 public:
  // `files`: text files beside the weights, by name. The folder may hold an earlier export; a README.md or a license
  // that people put beside it stays. Its tokenizer and generation_config.json are removed: they may be from another
  // job, whose ids stand for other texts (token_files_that_go). Throws IoError for a folder that holds any other file,
  // for a published model with its tokenizer, and for adapters that Hugging Face peft has written.
  HuggingFaceExport(const std::filesystem::path& path, std::map<std::string, std::string> files);
  [[nodiscard]] const std::filesystem::path& staging() const { return directory_.staging(); }
  // Adds files and index, and makes the folder appear. `shards`: their tensors, described. Throws StateError for equal
  // names.
  void commit(const std::vector<std::vector<TensorSource>>& shards);

 private:
  std::filesystem::path path_;
  std::map<std::string, std::string> files_;
  AtomicDirectory directory_;
};

struct HuggingFaceWriteOptions {
  // Maximum number of data bytes in a shard; a larger tensor gets its own shard. None: one shard.
  std::optional<std::int64_t> max_shard_bytes;
};

// The names of tokenizer files in the folder that an export with these `files` removes, for a warning.
[[nodiscard]] std::vector<std::string> token_files_that_go(const std::filesystem::path& path,
                                                           const std::map<std::string, std::string>& files);

// Throws the errors that an export would throw before it writes: for programs that train for hours before they export.
void check_huggingface_target(const std::filesystem::path& path, const std::map<std::string, std::string>& files = {});

// Calls check_huggingface_target(), then locks the folder to which a job exports at its end until the result is
// destroyed, by <path>.lock beside it. Throws IoError if another job holds the lock.
[[nodiscard]] std::unique_ptr<FolderLock> lock_huggingface_target(const std::filesystem::path& path,
                                                                  const std::map<std::string, std::string>& files = {});

// Local. Writes config.json and the tensors, in shards in the given order, and reads the sources one at a time. The
// folder appears completely or not at all and replaces an earlier export; as HuggingFaceExport. Throws StateError as
// write_safetensors does.
void write_huggingface_directory(const std::filesystem::path& path, const nlohmann::json& config,
                                 const std::vector<TensorSource>& tensors, const HuggingFaceWriteOptions& options = {});

}  // namespace d9d
