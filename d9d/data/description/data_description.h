// What a data stream does, as a tree: each part of the stream says one line, and has the descriptions of the parts that
// it reads.
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
  std::vector<DataDescription> inputs = {};  // what it reads
};

// Says what it does: describe().
template <class Part>
concept Describes = requires(const Part& part) {
  { part.describe() } -> std::same_as<DataDescription>;
};

// The lines of the tree from its root on. An input is indented by two spaces more than what reads it.
[[nodiscard]] std::vector<std::string> tree_lines(const DataDescription& root);

// "1 sample", "2 samples"; counted(2, "microbatch", "es") is "2 microbatches".
[[nodiscard]] std::string counted(std::int64_t count, std::string_view noun, std::string_view plural = "s");

// "'a.bin'", "'a.bin' and 3 more files"; "no files".
[[nodiscard]] std::string name_of_files(const std::vector<std::filesystem::path>& files);

}  // namespace d9d
