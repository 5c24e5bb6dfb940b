#include "d9d/data/text/json_lines.h"

#include <algorithm>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/json_fault.h"
#include "d9d/data/text/text_file_rows.h"

namespace d9d {

namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// A line of JSON in which each NaN, Infinity and -Infinity outside of strings has been replaced by null.
struct FiniteLine {
  std::string text;
  std::vector<std::size_t> longer_at = {};  // positions in `text` behind each "null" that replaces the shorter "NaN"
};

FiniteLine without_non_finite(std::string_view line) {
  FiniteLine finite;
  finite.text.reserve(line.size() + 8);
  bool is_in_text = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const std::string_view rest = line.substr(i);
    if (is_in_text && rest[0] == '\\') {
      finite.text += rest.substr(0, 2);
      ++i;
      continue;
    }
    if (rest[0] == '"') is_in_text = !is_in_text;
    std::string_view name;
    if (!is_in_text) {
      for (const std::string_view one : {"NaN", "Infinity", "-Infinity"}) name = rest.starts_with(one) ? one : name;
    }
    if (name.empty()) {
      finite.text += rest[0];
      continue;
    }
    finite.text += "null";
    if (name.size() < 4) finite.longer_at.push_back(finite.text.size());
    if (name.size() > 4) finite.text.append(name.size() - 4, ' ');
    i += name.size() - 1;
  }
  return finite;
}

struct Fault {
  std::string what = {};  // empty: none
  std::size_t byte = 0;   // counted from 1
};

Fault parse(std::string_view text, nlohmann::ordered_json& json) try {
  json = nlohmann::ordered_json::parse(text);
  return {};
} catch (const nlohmann::json::parse_error& error) {
  const std::string what = json_fault(error);
  return {what.substr(0, what.find("; last read")), error.byte};  // without "last read", which may quote a whole text
} catch (const nlohmann::json::exception& error) {
  return {json_fault(error), 1};
}

}  // namespace

std::string parse_json_line(std::string_view line, nlohmann::ordered_json& object) {
  Fault fault = parse(line, object);
  if (fault.what.empty()) return {};
  const FiniteLine finite = without_non_finite(line);
  if (finite.text != line) {
    fault = parse(finite.text, object);
    if (fault.what.empty()) return {};
    const auto is_before = [&](std::size_t at) { return at < fault.byte; };
    fault.byte -= static_cast<std::size_t>(std::ranges::count_if(finite.longer_at, is_before));
  }
  return cat("a line that is no JSON at column ", fault.byte, " (", fault.what, ")");
}

namespace {

// A handler for nlohmann's SAX parser that accepts every event and records where a parse error occurred.
struct ParseEnd final : nlohmann::json::json_sax_t {
  using Json = nlohmann::json;
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const Json::string_t&) override { return true; }
  bool string(Json::string_t&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool start_object(std::size_t) override { return true; }
  bool key(Json::string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(std::size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    error_at = position;
    return false;
  }
  std::size_t error_at = 0;
};

// Returns whether the text begins with an object that continues in later lines. A truncated row does not count: the
// lines after it are not part of its object.
bool is_over_lines(std::string_view text) {
  constexpr std::size_t kLooksAt = std::size_t{1} << 20;
  nlohmann::ordered_json line;
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos || end > kLooksAt) return false;
  if (parse_json_line(text.substr(0, end), line).empty()) return false;
  const auto format = nlohmann::json::input_format_t::json;
  ParseEnd of_line;
  const FiniteLine first = without_non_finite(text.substr(0, end));
  if (nlohmann::json::sax_parse(first.text, &of_line, format, /*strict=*/false)) return false;  // a complete value
  const FiniteLine begin = without_non_finite(text.substr(0, kLooksAt));
  ParseEnd parsed;
  const bool has_end = nlohmann::json::sax_parse(begin.text, &parsed, format, /*strict=*/false);
  return has_end || parsed.error_at > begin.text.size();
}

// Returns whether one of the first 16 lines with text begins with '{', and true if there is none. The first line alone
// would not decide, since a file may begin with malformed rows.
bool has_object(std::string_view text) {
  constexpr int kLooksAt = 16;
  for (int i = 0; i < kLooksAt; ++i) {
    const std::size_t first = text.find_first_not_of(kWhiteSpace);
    if (first == std::string_view::npos) return i == 0;
    if (text[first] == '{') return true;
    text.remove_prefix(std::min(text.find('\n', first), text.size()));
  }
  return false;
}

}  // namespace

void check_json_lines(const std::filesystem::path& path, std::string_view text) {
  check_text_file(path);
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::size_t first = text.find_first_not_of(kWhiteSpace);
  if (first == std::string_view::npos) return;
  text.remove_prefix(first);
  const auto refuse = [&](const char* found, const char* remedy) {
    throw IoError(cat("[data::check_json_lines] expected JSON lines, an object a line, in '", path.string(), "', got ",
                      found, ". ", remedy, "."));
  };
  if (text.front() == '[') refuse("an array, as it begins with '['", "Write an object a line: jq -c '.[]' does");
  if (is_over_lines(text)) refuse("an object over several lines", "Write each in one line: jq -c . does");
  if (!has_object(text)) refuse("lines that do not begin with '{'", "Check which file it is, and the kind of the data");
}

}  // namespace d9d
