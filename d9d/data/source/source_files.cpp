#include "d9d/data/source/source_files.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/data/source/match_files.h"

namespace d9d {

namespace {

namespace fs = std::filesystem;

// A file of a numbered set, read from its name: "train-00002-of-00003.parquet" is number 2 of 3.
struct Part {
  std::pair<std::string, std::string> group = {};  // the name before and after the number
  std::int64_t number = 0;
  std::int64_t count = 0;
};

std::optional<Part> part_of(const std::string& name) {
  if (name.find("-of-") == std::string::npos) return std::nullopt;  // fast path for most names
  static const std::regex kPart("(.*)[-._]([0-9]{3,6})-of-([0-9]{3,6}).*?(\\.[^.]*)?");
  std::smatch match;
  if (!std::regex_match(name, match, kPart)) return std::nullopt;
  return Part{.group = {match[1], match[3].str() + match[4].str()},
              .number = std::stoll(match[2]),
              .count = std::stoll(match[3])};
}

using Group = decltype(Part::group);

// Returns, by numbered set, the numbers of the files that are in the folder.
std::map<Group, std::set<std::int64_t>> parts_in(const fs::path& folder) {
  std::map<Group, std::set<std::int64_t>> numbers;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (const auto part = part_of(entry.path().filename().string())) numbers[part->group].insert(part->number);
  }
  return numbers;
}

void warn_of_group(const fs::path& first, std::int64_t count, const std::set<std::int64_t>& present,
                   const Logger& log) {
  // Some sets are numbered from 1 to `count`; if neither 0 nor `count` exists, it is unknown whether this is one.
  const bool is_start_unknown = !present.contains(0) && !present.contains(count);
  const std::int64_t begin = present.contains(count) ? 1 : 0;
  std::vector<std::int64_t> missing;
  for (std::int64_t number = begin; number < begin + count; ++number) {
    if (!present.contains(number)) missing.push_back(number);
  }
  if (missing.empty()) return;
  log.warning("data: '", first.string(), "' is one of ", count, " files, of which ", missing.size(),
              missing.size() == 1 ? " is" : " are", " not in its folder, the first with number ",
              is_start_unknown ? cat("0 or ", count) : std::to_string(missing.front()),
              ". Download what is missing, if it is not left out on purpose.");
}

}  // namespace

std::vector<fs::path> source_files(const std::vector<std::string>& patterns, const Logger& log) {
  std::vector<fs::path> files = match_files(patterns);
  std::set<fs::path> known;
  for (const std::string& pattern : patterns) {
    if (patterns.size() == 1) break;
    for (const fs::path& file : match_files({pattern})) {
      if (known.insert(fs::canonical(file)).second) continue;
      log.warning("data: '", file.string(), "' is named by '", pattern, "' and by a path before it: it is read once.");
      break;
    }
  }
  warn_of_missing_parts(files, log);
  return files;
}

std::vector<fs::path> without_empty(std::vector<fs::path> files, const Logger& log) {
  const auto has_bytes = [](const fs::path& file) { return fs::file_size(file) > 0; };
  const auto empty = std::ranges::stable_partition(files, has_bytes);
  if (empty.empty()) return files;
  const fs::path first = empty.front();
  const auto num_empty = std::ssize(empty);
  D9D_CHECK(num_empty < std::ssize(files), IoError, "[data::source_files] expected files with something in them, got ",
            num_empty, " empty ones, the first '", first.string(), "'. Check the paths of the data.");
  log.info("data: ", num_empty, " of ", files.size(), " files are empty, the first '", first.string(), "'");
  files.erase(empty.begin(), empty.end());
  return files;
}

void warn_of_missing_parts(const std::vector<fs::path>& files, const Logger& log) {
  // By folder and numbered set: a file of the set, and the number of files that the set should have.
  std::map<fs::path, std::map<Group, std::pair<fs::path, std::int64_t>>> folders;
  for (const fs::path& file : files) {
    const auto part = part_of(file.filename().string());
    if (part) folders[file.parent_path()].try_emplace(part->group, file, part->count);
  }
  for (const auto& [folder, groups] : folders) {
    const auto present = parts_in(folder);
    for (const auto& [group, first] : groups) {
      const auto numbers = present.find(group);
      if (numbers != present.end()) warn_of_group(first.first, first.second, numbers->second, log);
    }
  }
}

std::vector<fs::path> megatron_prefixes(const std::vector<std::string>& patterns, const Logger& log) {
  std::vector<std::string> indexes;
  for (const std::string& pattern : patterns) {
    const std::string end = fs::path(pattern).extension();
    const bool has_end = end == ".bin" || end == ".idx" || end == ".*";
    indexes.push_back(pattern.substr(0, pattern.size() - (has_end ? end.size() : 0)) + ".idx");
  }
  std::vector<fs::path> prefixes = source_files(indexes, log);
  for (fs::path& prefix : prefixes) {
    prefix.replace_extension();
    check_no_pointers({prefix.string() + ".bin"});
  }
  return prefixes;
}

}  // namespace d9d
