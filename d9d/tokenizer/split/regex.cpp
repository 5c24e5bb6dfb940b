#include "d9d/tokenizer/split/regex.h"

#include <cstddef>

#include "d9d/base/check.h"
#include "d9d/base/pcre2.h"
#include "d9d/tokenizer/split/regex_syntax.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::detail {
namespace {

constexpr std::size_t kFirstStack = std::size_t{32} << 10;
constexpr std::size_t kMostStack = std::size_t{64} << 20;

}  // namespace

struct Regex::Program {
  explicit Program(pcre2_code* compiled) : code(compiled) {}

  Pcre2Ptr<pcre2_code> code;
};

Regex::Regex(std::string_view pattern, const std::string& place) : place_(place) {
  const RegexOverKinds translated = translate_regex(pattern, place);
  kinds_ = std::make_shared<const TwoStageTable<std::uint8_t>>(translated.kinds);
  int error = 0;
  std::size_t position = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.pattern.data()), translated.pattern.size(),
                                   PCRE2_NEVER_UTF | PCRE2_DOTALL, &error, &position, nullptr);
  D9D_CHECK(code != nullptr, ConfigError, place, "expected a regular expression, got '", pattern, "' (",
            pcre2_message(error), "). Correct it.");
  program_ = std::make_shared<const Program>(code);
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // if it fails, matching is only slower
}

void Regex::find_all(std::string_view text, std::vector<Span>& matches) const {
  std::string kinds;
  std::vector<std::uint32_t> positions;  // begin of each character in `text`
  kinds.reserve(text.size());
  positions.reserve(text.size() + 1);
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint point = code_point_at(text, position);
    kinds.push_back(static_cast<char>((*kinds_)[point.value]));
    positions.push_back(static_cast<std::uint32_t>(position));
    position += point.length;
  }
  positions.push_back(static_cast<std::uint32_t>(text.size()));

  const Pcre2Ptr<pcre2_match_data> data(pcre2_match_data_create(1, nullptr));
  const Pcre2Ptr<pcre2_match_context> context(pcre2_match_context_create(nullptr));
  Pcre2Ptr<pcre2_jit_stack> stack;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(kinds.data());
  std::size_t begin = 0;
  std::size_t last_end = kinds.size() + 1;  // end of the previous match; invalid until there is one
  while (begin <= kinds.size()) {
    const int result = pcre2_match(program_->code.get(), subject, kinds.size(), begin, 0, data.get(), context.get());
    if (result == PCRE2_ERROR_JIT_STACKLIMIT && !stack) {
      stack.reset(pcre2_jit_stack_create(kFirstStack, kMostStack, nullptr));
      pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
      continue;
    }
    if (result == PCRE2_ERROR_NOMATCH) break;
    D9D_CHECK(result >= 0, ConfigError, place_, "expected a pattern that matches in few steps, got '",
              pcre2_message(result), "' in a text of ", kinds.size(), " characters. Change the pattern.");
    const std::size_t* ends = pcre2_get_ovector_pointer(data.get());
    if (ends[0] == ends[1] && ends[1] == last_end) {  // an empty match directly after another match does not count
      ++begin;
      continue;
    }
    matches.push_back({positions[ends[0]], positions[ends[1]]});
    begin = last_end = ends[1];
  }
}

}  // namespace d9d::detail
