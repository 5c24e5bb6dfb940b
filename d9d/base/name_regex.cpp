#include "d9d/base/name_regex.h"

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/pcre2.h"

namespace d9d {
namespace {

constexpr std::size_t kMostCharacters = 1024;
constexpr std::uint32_t kMostSteps = 100'000;  // from one begin of a match: some 2 ms. Usual expressions take hundreds

void check_length(const std::string& name, const std::string& expression, const std::string& place) {
  D9D_CHECK(name.size() <= kMostCharacters, StateError, place, "expected names of at most ", kMostCharacters,
            " characters for the regular expression '", expression, "', got ", name.size(), " in '", name.substr(0, 40),
            "...'. Name it by itself.");
}

PCRE2_SPTR units(const std::string& text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct NameRegex::Program {
  explicit Program(pcre2_code* compiled) : code(compiled), context(pcre2_match_context_create(nullptr)) {
    if (context == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), kMostSteps);
  }

  detail::Pcre2Ptr<pcre2_code> code;
  detail::Pcre2Ptr<pcre2_match_context> context;
};

NameRegex::NameRegex(const std::string& expression, std::string place, const std::string& what_for)
    : expression_(expression), place_(std::move(place)) {
  int error = 0;
  std::size_t position = 0;
  pcre2_code* code =
      pcre2_compile(units(expression), expression.size(), PCRE2_UTF | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_BACKSLASH_C,
                    &error, &position, nullptr);
  D9D_CHECK(code != nullptr, ConfigError, place_, "expected a regular expression ", what_for, ", got '", expression,
            "': ", detail::pcre2_message(error), " at character ", position, ".");
  program_ = std::make_shared<const Program>(code);
}

bool NameRegex::matches(const std::string& name) const {
  check_length(name, expression_, place_);
  const detail::Pcre2Ptr<pcre2_match_data> data(pcre2_match_data_create(1, nullptr));
  const int result = pcre2_match(program_->code.get(), units(name), name.size(), 0, PCRE2_ANCHORED | PCRE2_ENDANCHORED,
                                 data.get(), program_->context.get());
  D9D_CHECK(result >= 0 || result == PCRE2_ERROR_NOMATCH, ConfigError, place_, "expected to match a name in at most ",
            kMostSteps, " steps, got '", detail::pcre2_message(result), "' of '", expression_, "' for '", name,
            "'. Change the expression: a group that repeats and contains repeats, such as "
            "(a*)*, takes many.");
  return result >= 0;
}

std::string NameRegex::replace(const std::string& name, const std::string& replacement) const {
  check_length(name, expression_, place_);
  std::string replaced(name.size() + replacement.size() + 64, '\0');
  while (true) {
    std::size_t length = replaced.size();
    const int result =
        pcre2_substitute(program_->code.get(), units(name), name.size(), 0,
                         PCRE2_SUBSTITUTE_GLOBAL | PCRE2_SUBSTITUTE_UNSET_EMPTY | PCRE2_SUBSTITUTE_OVERFLOW_LENGTH,
                         nullptr, program_->context.get(), units(replacement), replacement.size(),
                         reinterpret_cast<PCRE2_UCHAR*>(replaced.data()), &length);
    if (result == PCRE2_ERROR_NOMEMORY && length > replaced.size()) {
      replaced.resize(length);
      continue;
    }
    D9D_CHECK(result >= 0, ConfigError, place_, "expected to replace what '", expression_, "' matches by '",
              replacement, "' in at most ", kMostSteps, " steps, got '", detail::pcre2_message(result), "' for '", name,
              "'. Groups are $1 or ${1}; a group that repeats and contains repeats, such as (a*)*, takes many steps.");
    replaced.resize(length);
    return replaced;
  }
}

}  // namespace d9d
