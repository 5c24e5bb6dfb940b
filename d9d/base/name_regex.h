// A regular expression over names of parameters, tensors or modules, in the syntax of Perl and Python's re (PCRE2).
//
// Example
//   const NameRegex layers(R"(layers\.(\d+)\..*)", "[optim::groups] ", "of names of parameters");
//   layers.matches("layers.0.mlp.weight");                              // true: the whole name
//   NameRegex(R"(^h\.(\d+))", place, "to rename by").replace("h.0.w", "layers.$1");  // "layers.0.w"
//
// The cost is bounded: a search that takes more than 100,000 steps, as "((a*)*)*b" can, throws, and so does a name of
// more than 1024 bytes.
#pragma once

#include <memory>
#include <string>

namespace d9d {

class NameRegex {
 public:
  // place begins the messages of errors; what_for follows "expected a regular expression". Throws ConfigError for what
  // is none.
  NameRegex(const std::string& expression, std::string place, const std::string& what_for);

  // Whether it matches the whole name, which is UTF-8. Throws ConfigError for too many steps, StateError for too long a
  // name.
  [[nodiscard]] bool matches(const std::string& name) const;
  // The name with each match replaced; in replacement $1 or ${1} is the first group, $0 the match and $$ a dollar.
  // Throws ConfigError for another use of $, for a group that is not there and for too many steps, StateError for too
  // long a name.
  [[nodiscard]] std::string replace(const std::string& name, const std::string& replacement) const;

 private:
  struct Program;

  std::string expression_;
  std::string place_;
  std::shared_ptr<const Program> program_;
};

}  // namespace d9d
