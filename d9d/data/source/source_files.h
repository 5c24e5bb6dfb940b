// The files of a source of data, and a word in the log on what may not be meant: a file that is named twice, empty
// files, a part of several that is not there.
//
// Example
//   const auto files = source_files({"corpus/*.jsonl", "corpus/a.jsonl"}, log);        // a.jsonl once
//   const auto prefixes = megatron_prefixes({"c4_text_document"}, log);                // as --data-path takes them
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "d9d/base/log.h"

namespace d9d {

// match_files(), checked by warn_of_missing_parts().
[[nodiscard]] std::vector<std::filesystem::path> source_files(const std::vector<std::string>& patterns,
                                                              const Logger& log);

// Without those of no bytes. Throws IoError if all are empty.
[[nodiscard]] std::vector<std::filesystem::path> without_empty(std::vector<std::filesystem::path> files,
                                                               const Logger& log);

// Warns where a name says that it is one of several ("train-00000-of-00003.parquet") and another of them is not in its
// folder. Those that are there and were not chosen are not missed.
void warn_of_missing_parts(const std::vector<std::filesystem::path>& files, const Logger& log);

// Paths of Megatron-LM's datasets without .idx and .bin, each once. A pattern is that of either file, or of none: then
// the .idx is looked for.
[[nodiscard]] std::vector<std::filesystem::path> megatron_prefixes(const std::vector<std::string>& patterns,
                                                                   const Logger& log);

}  // namespace d9d
