// Errors. A check that the user can correct throws ConfigError, StateError, IoError or CommunicationError; a violated
// invariant of this library throws InternalError. The text names the rule with names and values, what was found, and
// the remedy.
//
// Example
//   D9D_CHECK(hidden % heads == 0, ConfigError,
//             "[blocks::attention] expected hidden_size to be divisible by num_heads = ", heads,
//             ", got hidden_size = ", hidden, ". Change one of the two.");
#pragma once

#include <algorithm>
#include <sstream>
#include <stdexcept>
#include <string>

namespace d9d {

// Base of everything that this library throws on purpose.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

  // Adds to the first line where in the model and the job the error happened, such as "in layers.0.mlp". Called by code
  // that knows the place and rethrows.
  void add_place(const std::string& place) {
    places_ += (has_place() ? ", " : " (") + place;
    text_ = std::runtime_error::what();
    text_.insert(std::min(text_.find('\n'), text_.size()), places_ + ")");
  }
  [[nodiscard]] bool has_place() const { return !places_.empty(); }

  [[nodiscard]] const char* what() const noexcept override {
    return has_place() ? text_.c_str() : std::runtime_error::what();
  }

 private:
  std::string places_;
  std::string text_;
};
struct ConfigError : Error {  // a configuration or an argument breaks a rule
  using Error::Error;
};
struct StateError : Error {  // called in the wrong order, or model state that does not fit
  using Error::Error;
};
struct IoError : Error {  // a file or a stream: names the path and the cause
  using Error::Error;
};
struct CommunicationError : Error {  // other ranks did not join in time, or called another operation
  using Error::Error;
};
struct UsageError : Error {  // the command line itself; ends a program with exit code 2
  using Error::Error;
};
struct InternalError : Error {  // a bug of this library, never the user's fault
  using Error::Error;
};

// Concatenates streamable parts.
template <class... Parts>
[[nodiscard]] std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace d9d

// Throws `ErrorType` with the concatenated parts unless `condition` holds.
#define D9D_CHECK(condition, ErrorType, ...)                    \
  do {                                                          \
    if (!(condition)) throw ErrorType(::d9d::cat(__VA_ARGS__)); \
  } while (false)

// An invariant of this library.
#define D9D_ASSERT(condition, ...) D9D_CHECK(condition, ::d9d::InternalError, "[bug] ", #condition, ": ", __VA_ARGS__)
