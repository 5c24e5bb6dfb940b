// Parses the lines of JSON-lines files. Accepts NaN and Infinity, which Python writes, and turns them into null.
//
// Example
//   nlohmann::ordered_json object;
//   if (const std::string problem = parse_json_line(line, object); !problem.empty()) refuse(problem);
//   check_json_lines("corpus.jsonl", text);                                // the file as a whole
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace d9d {

// Sets `object`, with its keys in the order of the line, and returns an empty text, or returns what is wrong with the
// line and at which column (in bytes, counted from 1).
[[nodiscard]] std::string parse_json_line(std::string_view line, nlohmann::ordered_json& object);

// Throws IoError that names the file and the remedy if its beginning shows that its lines are not objects: other
// formats and encodings (check_text_file), a list of objects, an object over several lines, text that is not JSON.
void check_json_lines(const std::filesystem::path& path, std::string_view text);

}  // namespace d9d
