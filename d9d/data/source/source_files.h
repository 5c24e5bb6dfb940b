// Finds the files of a data source, and logs findings that are probably unintended: a file that is named twice, empty
// files, a missing part of a file set.
//
// Example
//   const auto files = source_files({"corpus/*.jsonl", "corpus/a.jsonl"}, log);        // a.jsonl once
//   const auto prefixes = megatron_prefixes({"c4_text_document"}, log);                // as in Megatron's --data-path
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "d9d/base/log.h"

namespace d9d {

// Returns the files that match_files() finds. Warns of files that two patterns name, and of missing parts
// (warn_of_missing_parts).
[[nodiscard]] std::vector<std::filesystem::path> source_files(const std::vector<std::string>& patterns,
                                                              const Logger& log);

// Returns the files that have at least one byte. Throws IoError if all are empty.
[[nodiscard]] std::vector<std::filesystem::path> without_empty(std::vector<std::filesystem::path> files,
                                                               const Logger& log);

// Warns if a file's name says that it is one of several ("train-00000-of-00003.parquet") and the folder of the file
// lacks another one of them. Files that are in the folder but not in `files` do not count as missing.
void warn_of_missing_parts(const std::vector<std::filesystem::path>& files, const Logger& log);

// Returns the paths of Megatron-LM's datasets without the extensions .idx and .bin, each once. A pattern may end in
// .idx, .bin, .* or have no extension; it is matched against the .idx files.
[[nodiscard]] std::vector<std::filesystem::path> megatron_prefixes(const std::vector<std::string>& patterns,
                                                                   const Logger& log);

}  // namespace d9d
