#include "d9d/base/config/read_scalar.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "d9d/base/check.h"
#include "d9d/base/config/json_integer.h"
#include "d9d/base/config/name_list.h"

namespace d9d {
namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n\r\f\v";
  const auto first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

// Digits may be grouped by single underscores, as in Python. None if there is an underscore elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return plain;
}

// Parses all of `text`, which may begin with '+', as a number.
template <class Number>
std::optional<Number> number_from_text(std::string_view text) {
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::int64_t> integer_from_text(std::string_view text) {
  text = trim(text);
  if (const auto dot = text.find('.'); dot != std::string_view::npos) {
    const auto fraction = text.substr(dot + 1);
    if (fraction.empty() || fraction.find_first_not_of('0') != std::string_view::npos) return std::nullopt;
    text = text.substr(0, dot);
  }
  const auto plain = without_underscores(text);
  return plain ? number_from_text<std::int64_t>(*plain) : std::nullopt;
}

std::optional<double> coerce_number(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (json.is_boolean()) return json.get<bool>() ? 1.0 : 0.0;
  if (!json.is_string()) return std::nullopt;
  const auto plain = without_underscores(trim(json.get_ref<const std::string&>()));
  return plain ? number_from_text<double>(*plain) : std::nullopt;
}

std::optional<bool> coerce_boolean(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) {
    const double number = json.get<double>();
    if (number == 0.0 || number == 1.0) return number == 1.0;
  }
  if (json.is_string()) {
    std::string word = json.get<std::string>();
    for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    for (const char* yes : {"1", "true", "t", "yes", "y", "on"}) {
      if (word == yes) return true;
    }
    for (const char* no : {"0", "false", "f", "no", "n", "off"}) {
      if (word == no) return false;
    }
  }
  return std::nullopt;
}

template <class Number>
void check_range(Number number, const ConfigPath& path, const Range& range) {
  const auto value = static_cast<double>(number);
  if (range.has_min) {
    D9D_CHECK(range.exclusive_min ? value > range.min : value >= range.min, ConfigError, path, "expected a number ",
              range.exclusive_min ? "> " : ">= ", range.min, ", got ", number, ". Change the value.");
  }
  if (range.has_max) {
    D9D_CHECK(range.exclusive_max ? value < range.max : value <= range.max, ConfigError, path, "expected a number ",
              range.exclusive_max ? "< " : "<= ", range.max, ", got ", number, ". Change the value.");
  }
}

// "got null. ...", followed by a remedy.
std::string found(const Json& json) {
  return json_excerpt(json) +
         (json.is_null() ? ". Give a value, or leave out the key if it has a default." : ". Change the value.");
}

}  // namespace

std::optional<std::int64_t> coerce_integer(const Json& json) {
  if (json.is_boolean()) return json.get<bool>() ? 1 : 0;
  if (json.is_number_integer()) return find_json_integer(json);
  if (json.is_number_float()) {
    const double number = json.get<double>();
    if (std::trunc(number) != number || number >= kTwoTo63 || number < -kTwoTo63) return std::nullopt;
    return static_cast<std::int64_t>(number);
  }
  if (json.is_string()) return integer_from_text(json.get_ref<const std::string&>());
  return std::nullopt;
}

bool read_boolean(const Json& json, const ConfigPath& path) {
  const auto value = coerce_boolean(json);
  D9D_CHECK(value.has_value(), ConfigError, path, "expected true or false, got ", found(json));
  return *value;
}

std::int64_t read_integer(const Json& json, const ConfigPath& path, const Range& range) {
  const auto number = coerce_integer(json);
  D9D_CHECK(number.has_value(), ConfigError, path, "expected an integer of at most 64 bits, got ", found(json));
  check_range(*number, path, range);
  return *number;
}

double read_number(const Json& json, const ConfigPath& path, const Range& range) {
  const auto number = coerce_number(json);
  D9D_CHECK(number.has_value() && std::isfinite(*number), ConfigError, path, "expected a finite number, got ",
            found(json));
  check_range(*number, path, range);
  return *number;
}

std::string read_string(const Json& json, const ConfigPath& path) {
  D9D_CHECK(json.is_string(), ConfigError, path, "expected a string, got ", found(json));
  return json.get<std::string>();
}

std::size_t read_name(const Json& json, const ConfigPath& path, std::span<const std::string_view> names) {
  D9D_CHECK(json.is_string(), ConfigError, path, "expected one of ", quoted_list(names), ", got ", found(json));
  const auto& name = json.get_ref<const std::string&>();
  const auto at = std::find(names.begin(), names.end(), name);
  const auto nearest = nearest_name(name, names);
  D9D_CHECK(at != names.end(), ConfigError, path, "expected one of ", quoted_list(names), ", got ", json_excerpt(json),
            ".", nearest.empty() ? std::string(" Change the value.") : cat(" Did you mean '", nearest, "'?"));
  return static_cast<std::size_t>(at - names.begin());
}

}  // namespace d9d
