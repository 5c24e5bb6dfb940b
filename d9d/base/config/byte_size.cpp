#include "d9d/base/config/byte_size.h"

#include <charconv>
#include <iomanip>
#include <limits>
#include <sstream>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/config/json_integer.h"
#include "d9d/base/config/value_type.h"

namespace d9d {
namespace {

// In this order write() looks for the first that divides a size.
constexpr std::pair<std::string_view, std::int64_t> kUnits[] = {{"TiB", 1LL << 40}, {"GiB", 1LL << 30},
                                                                {"MiB", 1LL << 20}, {"KiB", 1LL << 10},
                                                                {"GB", 1000000000}, {"MB", 1000000}};

class ByteSizeType final : public ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range&, void* target) const override {
    std::optional<std::int64_t> bytes;
    if (json.is_string()) bytes = parse_byte_size(json.get_ref<const std::string&>());
    if (json.is_number_integer()) bytes = find_json_integer(json);
    D9D_CHECK(bytes && *bytes >= 0, ConfigError, path, "expected a size such as \"80GiB\", or bytes, got ",
              json_excerpt(json), ". Change the value.");
    static_cast<ByteSize*>(target)->bytes = *bytes;
  }

  Json write(const void* value) const override {
    const std::int64_t bytes = static_cast<const ByteSize*>(value)->bytes;
    for (const auto& [name, unit] : kUnits) {
      if (bytes > 0 && bytes % unit == 0) return cat(bytes / unit, name);
    }
    return bytes;
  }

  Json schema(const Range&) const override {
    return {{"anyOf", Json::array({Json{{"type", "integer"}, {"minimum", 0}},
                                   Json{{"type", "string"}, {"pattern", "^[0-9]+([KMGT]iB|MB|GB)?$"}}})}};
  }
};

}  // namespace

std::optional<std::int64_t> parse_byte_size(std::string_view text) {
  std::int64_t unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!text.ends_with(name)) continue;
    text.remove_suffix(name.size());
    unit = bytes;
    break;
  }
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_count = !text.empty() && error == std::errc{} && end == text.data() + text.size() && count >= 0;
  if (!is_count || count > std::numeric_limits<std::int64_t>::max() / unit) return std::nullopt;
  return count * unit;
}

std::string byte_size_text(double size) {
  constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(kNames); ++unit) size /= 1024;
  std::ostringstream text;
  text << std::fixed << std::setprecision(unit == 0 ? 0 : 2) << size << ' ' << kNames[unit];
  return text.str();
}

template <>
const ValueType& json_type<ByteSize>() {
  static const ByteSizeType type;
  return type;
}

}  // namespace d9d
