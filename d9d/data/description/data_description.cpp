#include "d9d/data/description/data_description.h"

#include "d9d/base/check.h"

namespace d9d {

namespace {

void add_lines(const DataDescription& part, const std::string& indent, std::vector<std::string>& lines) {
  lines.push_back(indent + part.line);
  for (const DataDescription& input : part.inputs) add_lines(input, indent + "  ", lines);
}

}  // namespace

std::vector<std::string> tree_lines(const DataDescription& root) {
  std::vector<std::string> lines;
  add_lines(root, "", lines);
  return lines;
}

std::string counted(std::int64_t count, std::string_view noun, std::string_view plural) {
  return cat(count, " ", noun, count == 1 ? "" : plural);
}

std::string name_of_files(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) return "no files";
  const std::string first = "'" + files.front().string() + "'";
  return files.size() == 1 ? first : cat(first, " and ", counted(std::ssize(files) - 1, "more file"));
}

}  // namespace d9d
