#include "d9d/base/config/json_text.h"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"
#include "d9d/base/config/json_depth.h"
#include "d9d/base/config/json_fault.h"

namespace d9d {
namespace {

constexpr std::size_t kMaxExcerpt = 80;

// Observes a parse to find repeated keys, of which nlohmann's parser silently keeps the last.
class StructureCheck {
 public:
  explicit StructureCheck(const std::string& source) : source_(source) {}

  void operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        D9D_CHECK(depth < kMaxJsonDepth, ConfigError, ConfigPath{.source = source_}, "expected at most ", kMaxJsonDepth,
                  " levels of objects and lists, got more. Flatten the value.");
        keys_.emplace_back();
        names_.emplace_back();
        break;
      case Json::parse_event_t::key:
        names_.back() = parsed.get<std::string>();
        D9D_CHECK(keys_.back().insert(names_.back()).second, ConfigError, config_source({.source = source_}),
                  "expected each key once in an object, got '", dotted_name(), "' twice. Remove one.");
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        names_.pop_back();
        break;
      case Json::parse_event_t::value:
        break;
    }
  }

 private:
  [[nodiscard]] std::string dotted_name() const {
    ConfigPath path;
    for (const auto& name : names_) {
      if (!name.empty()) path = path / name;
    }
    return path.keys;
  }

  const std::string& source_;
  std::vector<std::set<std::string>> keys_;  // keys seen, for each open object or list
  std::vector<std::string> names_;           // current key, for each open object or list; empty in a list
};

// "line 3, column 5" for the byte at a position that nlohmann counts from 1.
std::string line_and_column(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte == 0 ? 0 : byte - 1, text.size()));
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return cat("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ", before.size() - line_start + 1);
}

}  // namespace

std::string json_fault(const std::exception& error) {
  const std::string what = error.what();
  for (const std::string_view marker : {" - ", ": "}) {
    if (const auto at = what.find(marker); at != std::string::npos) return what.substr(at + marker.size());
  }
  return what;
}

Json parse_json_text(std::string_view text, const std::string& source) {
  StructureCheck check(source);
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      check(depth, event, parsed);
      return true;
    });
  } catch (const Json::parse_error& error) {
    throw ConfigError(cat(ConfigPath{.source = source}, line_and_column(text, error.byte), ": expected JSON, got ",
                          json_fault(error), ". Correct the syntax."));
  } catch (const Json::exception& error) {
    throw ConfigError(
        cat(ConfigPath{.source = source}, "expected JSON, got ", json_fault(error), ". Correct the value."));
  }
}

Json read_json_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  D9D_CHECK(stream.is_open() && !std::filesystem::is_directory(file), IoError,
            "[config] expected a readable configuration file, got '", file.string(), "'. Check the path.");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return parse_json_text(text, file.string());
}

std::string json_excerpt(const Json& json) {
  const std::string text = json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  if (text.size() <= kMaxExcerpt) return text;
  std::size_t end = kMaxExcerpt;
  while (end > 0 && (text[end] & 0xC0) == 0x80) --end;  // do not cut inside a UTF-8 character
  return text.substr(0, end) + "...";
}

}  // namespace d9d
