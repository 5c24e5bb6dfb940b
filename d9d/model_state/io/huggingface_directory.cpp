#include "d9d/model_state/io/huggingface_directory.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>
#include <system_error>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/json_depth.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/base/io/git_lfs.h"
#include "d9d/base/io/input_file.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/model_state/io/safetensors.h"

namespace d9d {
namespace fs = std::filesystem;
namespace {
using json = nlohmann::json;

constexpr const char* kConfigFileName = "config.json";
constexpr const char* kSingleFileName = "model.safetensors";
constexpr const char* kIndexFileName = "model.safetensors.index.json";
constexpr const char* kAdapterConfigFileName = "adapter_config.json";  // of Hugging Face peft
constexpr const char* kAdapterFileName = "adapter_model.safetensors";
constexpr const char* kTokenizerFileName = "tokenizer.json";
constexpr const char* kTied = "tie_word_embeddings";  // of config.json
constexpr const char* kHead = "lm_head.weight";

// Files that people write about a model, and files of its tokenizer and its end-of-text tokens.
const std::set<std::string> kNotes = {"README.md", "LICENSE", ".gitattributes"};
const std::set<std::string> kTokenFiles = {kTokenizerFileName,
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "chat_template.jinja",
                                           "chat_template.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "generation_config.json"};

json read_object(const fs::path& path) {
  const std::string text = text_of_file(path);
  D9D_CHECK(!is_git_lfs_pointer(text), IoError, "[model_state::huggingface] '", path.string(),
            "': expected a JSON object, ", kGitLfsRemedy);
  D9D_CHECK(json_depth(text) <= kMaxJsonDepth, IoError, "[model_state::huggingface] expected at most ", kMaxJsonDepth,
            " levels of objects and lists in '", path.string(),
            "', got more. The file is damaged; write or download it again.");
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(object.is_object(), IoError, "[model_state::huggingface] expected a JSON object in '", path.string(),
            "', got something else. The file is damaged; write or download it again.");
  return object;
}

std::map<std::string, std::string> read_index(const fs::path& path) {
  const json index = read_object(path);
  const json weight_map = index.value("weight_map", json());
  D9D_CHECK(weight_map.is_object(), IoError, "[model_state::huggingface] expected 'weight_map' in '", path.string(),
            "' to map tensors to files, got ", weight_map.type_name(), ". Write or download the index again.");
  std::map<std::string, std::string> file_of_tensor;
  for (const auto& [name, file] : weight_map.items()) {
    const bool is_in_folder =
        file.is_string() && !file.get_ref<const std::string&>().empty() &&
        fs::path(file.get_ref<const std::string&>()).filename() == file.get_ref<const std::string&>();
    D9D_CHECK(is_in_folder, IoError, "[model_state::huggingface] expected '", path.string(), "' to place tensor '",
              name, "' in a file of its folder, got ", file.dump(), ". Write or download the index again.");
    file_of_tensor.emplace(name, file.get<std::string>());
  }
  return file_of_tensor;
}

std::vector<std::vector<TensorSource>> cut_into_shards(const std::vector<TensorSource>& tensors,
                                                       std::int64_t max_shard_bytes) {
  std::vector<std::int64_t> bytes;
  for (const TensorSource& tensor : tensors) bytes.push_back(num_bytes(tensor));
  const std::vector<std::size_t> shard_of_tensor = shard_of_each(bytes, max_shard_bytes);
  std::vector<std::vector<TensorSource>> shards(shard_of_tensor.empty() ? 1 : shard_of_tensor.back() + 1);
  for (std::size_t i = 0; i < tensors.size(); ++i) shards[shard_of_tensor[i]].push_back(tensors[i]);
  return shards;
}

json index_of(const std::vector<std::vector<TensorSource>>& shards) {
  json weight_map = json::object();
  std::int64_t total_size = 0;
  for (std::size_t index = 0; index < shards.size(); ++index) {
    for (const TensorSource& tensor : shards[index]) {
      D9D_CHECK(weight_map.emplace(tensor.name, huggingface_shard_name(index, shards.size())).second, StateError,
                "[model_state::huggingface] expected each tensor name once, got '", tensor.name,
                "' twice. Rename one.");
      total_size += num_bytes(tensor);
    }
  }
  return {{"metadata", {{"total_size", total_size}}}, {"weight_map", weight_map}};
}

// Whether the name has the form of huggingface_shard_name(): model-00001-of-00003.safetensors.
bool is_shard(const std::string& name) {
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  const auto fits = [](char pattern, char c) { return pattern == '#' ? c >= '0' && c <= '9' : pattern == c; };
  return std::ranges::equal(kPattern, name, fits);
}

// Whether a config.json belongs to a published model or a copy of one, and not to an export of this library.
bool is_of_transformers(const std::string& config_json) {
  const json config = json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("transformers_version");
}

// The same for an adapter_config.json.
bool is_of_peft(const fs::path& folder) {
  std::error_code error;
  if (!fs::exists(folder / kAdapterConfigFileName, error)) return false;
  const json config = json::parse(text_of_file(folder / kAdapterConfigFileName), nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("peft_version");
}

// Whether every entry of the folder has a name that an export with these files uses, or that people put beside one.
bool is_export(const fs::path& directory, const std::map<std::string, std::string>& files) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) return false;
  bool has_more = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    const bool is_weights =
        name == kSingleFileName || name == kIndexFileName || name == kAdapterFileName || is_shard(name);
    if (is_weights || name == kConfigFileName || name == kAdapterConfigFileName) continue;
    if (!files.contains(name) && !kNotes.contains(name) && !kTokenFiles.contains(name)) return false;
    has_more = true;
  }
  const fs::path config = directory / kConfigFileName;
  const bool is_published = has_more && fs::exists(config, error) && is_of_transformers(text_of_file(config));
  const auto own = files.find(kConfigFileName);
  if (is_of_peft(directory)) return false;
  return !error && (!is_published || (own != files.end() && is_of_transformers(own->second)));
}

// The names of those of the `known` files that are in the folder and that this export does not write.
std::vector<std::string> others_in(const fs::path& directory, const std::set<std::string>& known,
                                   const std::map<std::string, std::string>& files) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    if (known.contains(name) && !files.contains(name) && entry.is_regular_file(error)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

bool have_equal_values(const TensorSource& left, const TensorSource& right) {
  const at::Tensor a = left.read(), b = right.read();
  if (a.sizes() != b.sizes()) return false;
  return a.scalar_type() == b.scalar_type() ? at::equal(a, b) : at::equal(a.to(at::kDouble), b.to(at::kDouble));
}

// "Qwen/Qwen3-0.6B"
bool is_name_of_hub(const fs::path& path) {
  const std::string name = path.string();
  const bool has_folder = !path.has_root_path() && std::ranges::count(name, '/') == 1;
  return has_folder && !name.starts_with('.') && !name.starts_with('~') && path.has_filename() &&
         !fs::exists(path.parent_path());
}

// The weights in a folder that are in another format: "pytorch_model.bin". Empty: there are none.
std::string other_weights_in(const fs::path& folder) {
  const std::set<std::string> formats = {".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack"};
  std::error_code error;
  std::set<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (formats.contains(entry.path().extension())) found.insert(entry.path().filename());
  }
  return found.empty() ? "" : *found.begin();
}

[[noreturn]] void refuse_folder(const fs::path& path) {
  constexpr const char* kExpected =
      "[model_state::huggingface] expected a folder with model.safetensors or "
      "model.safetensors.index.json, got '";
  std::error_code error;
  if (!fs::exists(path, error)) {
    const std::string remedy =
        is_name_of_hub(path) ? cat("Check the path. If it is a name of the Hugging Face hub, run \"hf download ",
                                   path.string(), " --local-dir ", path.filename().string(), "\" and name that folder.")
                             : "Check the path.";
    throw IoError(cat(kExpected, path.string(), "', which does not exist. ", remedy));
  }
  D9D_CHECK(fs::is_directory(path, error), IoError, kExpected, path.string(),
            "', which is a file. Name the folder that it is in.");
  const std::string other = other_weights_in(path);
  D9D_CHECK(
      other.empty(), IoError, kExpected, path.string(), "', which has weights in another format: ", other,
      ". Write them as safetensors: in Python, AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW).");
  D9D_CHECK(!fs::exists(path / kAdapterConfigFileName, error), IoError, kExpected, path.string(),
            "', which has an adapter alone. Merge it into its model: in Python, "
            "AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW).");
  throw IoError(cat(kExpected, path.string(), "', which has neither. Check the path."));
}

}  // namespace

std::optional<std::string> ignored_index(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path / kSingleFileName, error) || !fs::exists(path / kIndexFileName, error)) return std::nullopt;
  for (const auto& [tensor, file] : read_index(path / kIndexFileName)) {
    if (file != kSingleFileName) return kIndexFileName;
  }
  return std::nullopt;
}

bool is_huggingface_directory(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path / kSingleFileName, ignored) || fs::exists(path / kIndexFileName, ignored);
}

HuggingFaceDirectory::HuggingFaceDirectory(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  if (fs::exists(path_ / kSingleFileName, error)) {
    for (const auto& [name, entry] : open(kSingleFileName)->entries()) file_of_tensor_.emplace(name, kSingleFileName);
    return;
  }
  if (!fs::exists(path_ / kIndexFileName, error)) refuse_folder(path_);
  file_of_tensor_ = read_index(path_ / kIndexFileName);
}

json HuggingFaceDirectory::read_config() const {
  json config = read_object(path_ / kConfigFileName);
  if (has_untied_head(config)) config[kTied] = false;
  return config;
}

bool HuggingFaceDirectory::has_untied_head() const {
  std::error_code error;
  const bool may_have = file_of_tensor_.contains(kHead) && fs::exists(path_ / kConfigFileName, error);
  return may_have && has_untied_head(read_object(path_ / kConfigFileName));
}

bool HuggingFaceDirectory::has_untied_head(const json& config) const {
  if (config.value(kTied, json()) != true) return false;
  const auto head = find(kHead);
  if (!head) return false;
  for (const char* name : {"model.embed_tokens.weight", "embed_tokens.weight"}) {
    if (const auto embedding = find(name)) return !have_equal_values(*head, *embedding);
  }
  return false;
}

std::vector<std::string> HuggingFaceDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_tensor_) names.push_back(name);
  return names;
}

std::optional<TensorSource> HuggingFaceDirectory::find(const std::string& name) const {
  const auto found = file_of_tensor_.find(name);
  if (found == file_of_tensor_.end()) return std::nullopt;
  const std::shared_ptr<SafetensorsFile>& file = open(found->second);
  const auto entry = file->entries().find(name);
  const std::string path = path_ / found->second;
  D9D_CHECK(entry != file->entries().end(), IoError, "[model_state::huggingface] expected tensor '", name, "' in '",
            path, "' as ", kIndexFileName, " says, got none of that name. Write or download the folder again.");
  return TensorSource{.name = name,
                      .dtype = entry->second.dtype,
                      .shape = entry->second.shape,
                      .read = [file, name] { return file->tensor(name); },
                      .origin = path,
                      .stored = {{.box = whole_box(entry->second.shape),
                                  .values = {.path = path,
                                             .offset = static_cast<std::int64_t>(entry->second.offset),
                                             .dtype = entry->second.dtype,
                                             .shape = entry->second.shape}}}};
}

const std::shared_ptr<SafetensorsFile>& HuggingFaceDirectory::open(const std::string& file) const {
  std::shared_ptr<SafetensorsFile>& opened = open_files_[file];
  if (opened) return opened;
  const auto shard = std::make_shared<SafetensorsFile>(path_ / file);
  for (const auto& [name, entry] : shard->entries()) {
    D9D_CHECK(file == kSingleFileName || file_of_tensor_.contains(name), IoError,
              "[model_state::huggingface] expected ", kIndexFileName, " in '", path_.string(),
              "' to list all tensors of its files, got none of the name '", name, "', which '", file,
              "' has. Write or download the folder again.");
  }
  return opened = shard;
}

namespace {

// Makes a staging folder for `path`, which may hold an earlier export.
AtomicDirectory stage_export(const fs::path& path, const std::map<std::string, std::string>& files) {
  std::error_code error;
  fs::create_directories(fs::absolute(path).parent_path(), error);
  D9D_CHECK(!error, IoError, "[model_state::huggingface] expected to create the folders above '", path.string(),
            "', got ", error.message(), ". Choose another place.");
  clear_remains(path);
  return AtomicDirectory(path, is_export(path, files) ? ExistingDirectory::kReplace : ExistingDirectory::kRefuse);
}

}  // namespace

std::string huggingface_shard_name(std::size_t index, std::size_t num_shards) {
  if (num_shards == 1) return kSingleFileName;
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, num_shards);
  return name;
}

std::vector<std::size_t> shard_of_each(const std::vector<std::int64_t>& bytes, std::int64_t max_shard_bytes) {
  std::vector<std::size_t> shards;
  std::int64_t filled = 0;
  for (const std::int64_t each : bytes) {
    const bool is_full = filled > 0 && filled + each > max_shard_bytes;
    filled = is_full ? each : filled + each;
    shards.push_back((shards.empty() ? 0 : shards.back()) + (is_full ? 1 : 0));
  }
  return shards;
}

HuggingFaceExport::HuggingFaceExport(const fs::path& path, std::map<std::string, std::string> files)
    : path_(path), files_(std::move(files)), directory_(stage_export(path, files_)) {
  for (const auto& [name, text] : files_) {
    D9D_CHECK(fs::path(name).filename() == name && name != kSingleFileName && name != kIndexFileName, ConfigError,
              "[model_state::huggingface] expected names of files beside the weights, got '", name, "'. Rename it.");
  }
}

void HuggingFaceExport::commit(const std::vector<std::vector<TensorSource>>& shards) {
  const json index = index_of(shards);
  for (const std::string& name : others_in(path_, kNotes, files_)) {
    write_file_atomically(staging() / name, text_of_file(path_ / name));
  }
  for (const auto& [name, text] : files_) write_file_atomically(staging() / name, text);
  if (shards.size() > 1) write_file_atomically(staging() / kIndexFileName, index.dump(4));
  directory_.commit();
}

std::vector<std::string> token_files_that_go(const fs::path& path, const std::map<std::string, std::string>& files) {
  if (files.contains(kTokenizerFileName)) return {};
  return others_in(path, kTokenFiles, files);
}

void check_huggingface_target(const fs::path& path, const std::map<std::string, std::string>& files) {
  const AtomicDirectory directory = stage_export(path, files);
}

std::unique_ptr<FolderLock> lock_huggingface_target(const fs::path& path,
                                                    const std::map<std::string, std::string>& files) {
  check_huggingface_target(path, files);
  std::error_code ignored;
  fs::path place = fs::weakly_canonical(fs::absolute(path), ignored);
  if (!place.has_filename()) place = place.parent_path();
  return std::make_unique<FolderLock>(path, place.string() + ".lock");
}

void write_huggingface_directory(const fs::path& path, const json& config, const std::vector<TensorSource>& tensors,
                                 const HuggingFaceWriteOptions& options) {
  HuggingFaceExport target(path, {{kConfigFileName, config.dump(2) + "\n"}});
  const auto shards = options.max_shard_bytes ? cut_into_shards(tensors, *options.max_shard_bytes)
                                              : std::vector<std::vector<TensorSource>>{tensors};
  for (std::size_t index = 0; index < shards.size(); ++index) {
    write_safetensors(target.staging() / huggingface_shard_name(index, shards.size()), shards[index]);
  }
  target.commit(shards);
}

}  // namespace d9d
