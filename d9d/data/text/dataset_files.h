// The files of one split of a local dataset of Hugging Face: a folder that Dataset.save_to_disk or
// DatasetDict.save_to_disk wrote, one of load_dataset's cache, or one as the hub has them.
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

// Looks, in this order, for `dataset_dict.json` (the folder of the split is taken), `state.json` (files in its order),
// and files *.arrow, *.parquet, *.jsonl and *.json of the split, in the folder or in its folder `data`: those whose
// name has the split as a word ("train-00000-of-00002.parquet", "wikitext-train.arrow", "train_1.jsonl"; but
// "train_sft-00000-of-00001.parquet" is of the split "train_sft" alone), or, of split "train", all if no name has a
// split. Throws ConfigError, with the remedy, for a name of the hub (no such folder), IoError for a
// folder without files of the split, or whose rows are selected by indices.
[[nodiscard]] DatasetFiles dataset_files(const std::filesystem::path& dataset, const std::string& split);

}  // namespace d9d
