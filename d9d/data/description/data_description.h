// Describes a data stream as a tree: each part of the stream has one line of text, and below it the lines of the parts
// that it reads.
//
// Example
//   for (const std::string& line : tree_lines(stream->describe())) log.info(line);
//     packs of 2 microbatches, one pack in each step of a rank
//       loader: reads each microbatch when it is needed
//         order: 20 samples, shuffled in each epoch, in global batches of 4 and microbatches of 2, one epoch
//           20 samples
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace d9d {

struct DataDescription {
  std::string line;
  std::vector<DataDescription> inputs = {};  // the parts that this part reads
};

// A part of a data stream that describes itself.
template <class Part>
concept Describes = requires(const Part& part) {
  { part.describe() } -> std::same_as<DataDescription>;
};

// Returns the lines of the tree, the root first. A part is indented by two spaces more than the part that reads it.
[[nodiscard]] std::vector<std::string> tree_lines(const DataDescription& root);

// Returns a number with its noun: "1 sample", "2 samples"; counted(2, "microbatch", "es") is "2 microbatches".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun, std::string_view plural = "s");

// Returns a short name of several files: "'a.bin'", "'a.bin' and 3 more files" or "no files".
[[nodiscard]] std::string name_of_files(const std::vector<std::filesystem::path>& files);

}  // namespace d9d
