#include "d9d/data/text/dataset_files.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <regex>
#include <string_view>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/mapped_file.h"

namespace d9d {

namespace {

namespace fs = std::filesystem;

// Returns read(json) for the JSON of a file that save_to_disk wrote.
auto read_saved(const fs::path& path, const auto& read) {
  const MappedFile file(path);
  const std::string_view text{reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  try {
    return read(nlohmann::json::parse(text));
  } catch (const nlohmann::json::exception& error) {
    throw IoError(cat("[data::dataset_files] expected what save_to_disk() writes in '", path.string(), "', got ",
                      error.what(), ". Save the dataset again."));
  }
}

// Returns the files of one split, as listed in its state.json, which also names the split if the datasets library knew
// it.
DatasetFiles saved_files(const nlohmann::json& state, const fs::path& folder, const std::string& split) {
  const nlohmann::json saved = state.value("_split", nlohmann::json());
  D9D_CHECK(saved.is_null() || saved == split, IoError, "[data::dataset_files] expected a split '", split, "' in '",
            folder.string(), "', got only ", saved, ". Change \"split\".");
  D9D_CHECK(!state.contains("_indices_files") || state.at("_indices_files").empty(), IoError,
            "[data::dataset_files] expected rows in the order of the files in '", folder.string(),
            "', got a selection by indices. Call flatten_indices() before save_to_disk().");
  DatasetFiles files;
  for (const auto& file : state.at("_data_files")) {
    files.paths.push_back(folder / file.at("filename").get<std::string>());
  }
  return files;
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// Which characters end a word in the name of a file. kOfDatasets, for names that the datasets library wrote: all but
// letters, digits and "_", so that "train_sft" is one word. kOfOthers: all but letters, so that "train_1" has the word
// "train"; but adjacent digits are in one word.
enum class Words { kOfDatasets, kOfOthers };

bool separates(char c, char of_word, Words words) {
  if (words == Words::kOfDatasets) return !is_letter(c) && !is_digit(c) && c != '_';
  return !is_letter(c) && !(is_digit(c) && is_digit(of_word));
}

bool has_word(std::string_view name, std::string_view word, Words words) {
  for (std::size_t at = name.find(word); at != std::string_view::npos; at = name.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || separates(name[at - 1], word.front(), words);
    if (begins && (end == name.size() || separates(name[end], word.back(), words))) return true;
  }
  return false;
}

// Returns the words by which the datasets library recognises a split in file names that it did not write.
std::vector<std::string> words_of_split(const std::string& split) {
  if (split == "train") return {"train", "training"};
  if (split == "validation") return {"validation", "valid", "dev", "val"};
  if (split == "test") return {"test", "testing", "eval", "evaluation"};
  return {split};
}

bool is_of_split(std::string_view name, const std::string& split) {
  return std::ranges::any_of(words_of_split(split),
                             [&](const std::string& word) { return has_word(name, word, Words::kOfOthers); });
}

bool has_any_split(std::string_view name) {
  return is_of_split(name, "train") || is_of_split(name, "validation") || is_of_split(name, "test");
}

// Returns whether the name numbers one of several files of a split: "train-00000-of-00002".
bool is_shard(const std::string& name) {
  const std::regex shard("-[0-9]{5}-of-[0-9]{5}");
  return std::regex_search(name, shard);
}

std::vector<fs::path> files_of(const fs::path& folder, std::string_view extension, const std::string& split) {
  std::vector<fs::path> all, of_split;
  if (!fs::is_directory(folder)) return {};
  for (const auto& entry : fs::directory_iterator(folder)) {
    // Arrow files that begin with "cache-" are results of map() or indices, not the rows of the split.
    const bool is_cache = extension == ".arrow" && entry.path().filename().string().starts_with("cache-");
    if (entry.is_regular_file() && entry.path().extension() == extension && !is_cache) all.push_back(entry.path());
  }
  std::ranges::sort(all);
  for (const fs::path& path : all) {
    const std::string name = path.stem().string();
    const bool is_of_datasets = extension == ".arrow" || is_shard(name);
    const bool matches = is_of_datasets ? has_word(name, split, Words::kOfDatasets) : is_of_split(name, split);
    if (matches) of_split.push_back(path);
  }
  const bool names_no_split =
      std::ranges::none_of(all, [](const fs::path& path) { return has_any_split(path.stem().string()); });
  const bool may_be_something_else = extension == ".json";  // such as a tokenizer or a dataset_info
  return split == "train" && names_no_split && !may_be_something_else ? all : of_split;
}

}  // namespace

DatasetFiles dataset_files(const fs::path& dataset, const std::string& split) {
  std::error_code error;
  D9D_CHECK(fs::is_directory(dataset, error), ConfigError,
            "[data::dataset_files] expected a folder of a dataset, got '", dataset.string(),
            "', which is none here. Datasets of the hub are not downloaded: run "
            "`datasets.load_dataset(name).save_to_disk(folder)` once and name the folder.");
  if (fs::exists(dataset / "dataset_dict.json")) {
    D9D_CHECK(fs::exists(dataset / split / "state.json"), IoError, "[data::dataset_files] expected a split '", split,
              "' in '", dataset.string(), "', got only ",
              read_saved(dataset / "dataset_dict.json", [](const nlohmann::json& json) { return json.at("splits"); }),
              ". Change \"split\".");
  }
  for (const fs::path& folder : {dataset / split, dataset}) {
    if (!fs::exists(folder / "state.json")) continue;
    return read_saved(folder / "state.json",
                      [&](const nlohmann::json& state) { return saved_files(state, folder, split); });
  }
  struct Kind {
    std::string_view extension;
    DatasetFormat format;
  };
  constexpr std::array<Kind, 4> kKinds{{{".arrow", DatasetFormat::kArrow},
                                        {".parquet", DatasetFormat::kParquet},
                                        {".jsonl", DatasetFormat::kJsonl},
                                        {".json", DatasetFormat::kJsonl}}};
  for (const auto& [extension, format] : kKinds) {
    for (const fs::path& folder : {dataset, dataset / "data"}) {
      std::vector<fs::path> paths = files_of(folder, extension, split);
      if (!paths.empty()) return {.format = format, .paths = std::move(paths)};
    }
  }
  throw IoError(cat("[data::dataset_files] expected Arrow, Parquet or JSON lines of split '", split, "' in '",
                    dataset.string(), "', got none. Check the folder and the split."));
}

}  // namespace d9d
