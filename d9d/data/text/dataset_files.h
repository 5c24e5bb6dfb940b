// Finds the files of one split of a local Hugging Face dataset: a folder that Dataset.save_to_disk or
// DatasetDict.save_to_disk wrote, a folder of load_dataset's cache, or a copy of a repository of the hub.
//
// Example
//   const DatasetFiles files = dataset_files("example_data/dataset", "train");
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace d9d {

enum class DatasetFormat { kArrow, kParquet, kJsonl };

struct DatasetFiles {
  DatasetFormat format = DatasetFormat::kArrow;
  std::vector<std::filesystem::path> paths = {};  // in the order of rows
};

// Finds the files of a split. Looks, in this order, for `dataset_dict.json` (the folder of the split is used), for
// `state.json` (files in its order), and for files *.arrow, *.parquet, *.jsonl and *.json of the split, in the folder
// or in its subfolder `data`. A file belongs to the split if its name has the split as a word
// ("train-00000-of-00002.parquet", "wikitext-train.arrow", "train_1.jsonl"; but "train_sft-00000-of-00001.parquet"
// belongs only to the split "train_sft"). All files belong to the split "train" if no name has a split, except *.json.
// Throws ConfigError, with the remedy, if the folder does not exist (such as a name of the hub), and IoError if the
// folder has no files of the split, or if it is a saved dataset whose rows are selected by indices.
[[nodiscard]] DatasetFiles dataset_files(const std::filesystem::path& dataset, const std::string& split);

}  // namespace d9d
