// A regular expression over whole names of modules.
//
// Example
//   const NamePattern pattern(".*\\.mlp\\..*", "[peft] ");
//   if (pattern.matches(name)) ...
#pragma once

#include <regex>
#include <string>

#include "d9d/base/check.h"

namespace d9d {

class NamePattern {
 public:
  // place: begins the message of the ConfigError for what is no regular expression of ECMAScript.
  NamePattern(const std::string& expression, const std::string& place) {
    try {
      expression_ = std::regex(expression);
    } catch (const std::regex_error& error) {
      throw ConfigError(
          cat(place, "expected a regular expression of names of modules, got '", expression, "': ", error.what(), "."));
    }
  }
  [[nodiscard]] bool matches(const std::string& name) const { return std::regex_match(name, expression_); }

 private:
  std::regex expression_;
};

}  // namespace d9d
