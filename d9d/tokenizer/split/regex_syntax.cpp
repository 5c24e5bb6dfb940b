#include "d9d/tokenizer/split/regex_syntax.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <optional>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/tokenizer/split/code_point_set.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::detail {
namespace {

constexpr std::size_t kMostKinds = 256;
constexpr std::size_t kMostSets = 2'000;

// A parsed pattern: parts are text for PCRE2, or the index of a set of code points.
struct ParsedRegex {
  struct Part {
    std::string text;
    std::optional<std::size_t> set;
  };
  std::vector<Part> parts;
  std::vector<CodePointSet> sets;
};

CodePointSet single(char32_t code) {
  CodePointSet set;
  set.add(code, code + 1);
  return set;
}

// The set of an ASCII character in both letter cases.
CodePointSet any_case(char32_t code) {
  CodePointSet set = single(code);
  const char32_t lower = code | 0x20;
  if (lower < U'a' || lower > U'z') return set;
  set.add(single(lower));
  set.add(single(lower - 0x20));
  if (lower == U's') set.add(single(0x17F));   // LATIN SMALL LETTER LONG S
  if (lower == U'k') set.add(single(0x212A));  // KELVIN SIGN
  return set;
}

// The set with both letter cases of its ASCII letters. nullopt if it has members beyond ASCII that may have letter
// case.
std::optional<CodePointSet> any_case(const CodePointSet& set) {
  CodePointSet cased;  // code points that may have letter case
  for (const char* category : {"L", "M", "Nl", "So"}) cased.add(*set_of_category(category));
  CodePointSet result = set;
  for (const auto& [begin, end] : set.ranges()) {
    for (char32_t code = begin; code < end; ++code) {
      if (code < 0x80) result.add(any_case(code));
      if (code >= 0x80 && cased.contains(code)) return std::nullopt;
    }
  }
  return result;
}

// The letter if the set consists of its cases, or the character if the set has only one; 0 for other sets.
char32_t letter_of(const CodePointSet& set) {
  if (set.ranges().empty()) return 0;
  const char32_t first = set.ranges().front().begin;
  return any_case(first).ranges() == set.ranges() ? first : 0;
}

// A position in a pattern.
class PatternCursor {
 protected:
  PatternCursor(std::string_view pattern, const std::string& place)
      : pattern_(pattern), code_points_(to_utf32(pattern)), place_(place) {}

  [[noreturn]] void refuse(std::string_view expected) const {
    throw ConfigError(cat(place_, "expected ", expected, " at character ", position_, " of the pattern '", pattern_,
                          "'. This construct is not built; rewrite the pattern without it."));
  }
  [[nodiscard]] bool at_end() const { return position_ == code_points_.size(); }
  [[nodiscard]] bool next_is(std::u32string_view text) const {
    return std::u32string_view(code_points_).substr(position_).starts_with(text);
  }
  bool take(std::u32string_view text) {
    const bool is_next = next_is(text);
    if (is_next) position_ += text.size();
    return is_next;
  }
  char32_t take_any() {
    if (at_end()) refuse("more");
    return code_points_[position_++];
  }

  std::string take_digits() {
    std::string digits;
    while (!at_end() && code_points_[position_] >= U'0' && code_points_[position_] <= U'9') {
      digits.push_back(static_cast<char>(code_points_[position_++]));
    }
    return digits;
  }

  char32_t take_hexadecimal(int fewest, int most) {
    char32_t code = 0;
    int count = 0;
    for (; count < most && !at_end(); ++count, ++position_) {
      const char32_t digit = code_points_[position_];
      const char32_t lower = digit | 0x20;
      const bool is_decimal = digit >= U'0' && digit <= U'9';
      if (!is_decimal && (lower < U'a' || lower > U'f')) break;
      code = code * 16 + (is_decimal ? digit - U'0' : lower - U'a' + 10);
    }
    if (count < fewest || code >= kNumCodePoints) refuse("the hexadecimal number of a code point");
    return code;
  }

  std::string_view pattern_;
  std::u32string code_points_;
  const std::string& place_;
  std::size_t position_ = 0;
};

// Reads characters, escapes and sets in brackets.
class SetParser : protected PatternCursor {
 protected:
  using PatternCursor::PatternCursor;
  enum class Letters { kExact, kAnyCase };

  CodePointSet parse_set_or_character(Letters letters) {
    if (take(U"[")) return parse_bracket(letters);
    if (take(U".")) return single(U'\n').complement();
    if (next_is(U"*") || next_is(U"+") || next_is(U"?")) refuse("something to repeat");
    const std::size_t place = position_;
    const CodePointSet set = next_is(U"\\") ? parse_escape() : single(take_any());
    return letters == Letters::kAnyCase ? with_any_case(set, place) : set;
  }

  CodePointSet parse_bracket(Letters letters) {
    const std::size_t place = position_;
    const bool is_negated = take(U"^");
    CodePointSet set;
    if (next_is(U"]")) refuse("a set that is not empty");
    while (!take(U"]")) {
      if (next_is(U"[") || next_is(U"&&")) refuse("no set within a set, and no intersection");
      CodePointSet member = next_is(U"\\") ? parse_escape() : single(take_any());
      const auto& ranges = member.ranges();
      const bool is_character = ranges.size() == 1 && ranges[0].end - ranges[0].begin == 1;
      const bool begins_range = next_is(U"-") && !next_is(U"-]");
      if (begins_range) {
        ++position_;
        const CodePointSet last = next_is(U"\\") ? parse_escape() : single(take_any());
        const auto& ends = last.ranges();
        if (!is_character || ends.size() != 1 || ends[0].end - ends[0].begin != 1 || ends[0].begin < ranges[0].begin) {
          refuse("a range from a character to one that does not come before it");
        }
        member.add(ranges[0].begin, ends[0].end);
      }
      set.add(member);
    }
    if (letters == Letters::kAnyCase) set = with_any_case(set, place);  // must precede negation
    return is_negated ? set.complement() : set;
  }

  CodePointSet with_any_case(const CodePointSet& set, std::size_t place) {
    auto result = any_case(set);
    if (!result) position_ = place;
    if (!result) refuse("only ASCII characters, and sets without other letters, in (?i:...)");
    return *std::move(result);
  }

  CodePointSet parse_escape() {
    ++position_;  // the backslash
    const char32_t code = take_any();
    switch (code) {
      case U's':
        return set_of_class(kSpace);
      case U'S':
        return set_of_class(kSpace).complement();
      case U'd':
        return *set_of_category("Nd");
      case U'D':
        return set_of_category("Nd")->complement();
      case U'w':
        return pattern_word_characters();
      case U'W':
        return pattern_word_characters().complement();
      case U'p':
        return parse_property(false);
      case U'P':
        return parse_property(true);
      case U't':
        return single(U'\t');
      case U'n':
        return single(U'\n');
      case U'v':
        return single(U'\v');
      case U'f':
        return single(U'\f');
      case U'r':
        return single(U'\r');
      case U'x':
        return single(parse_hexadecimal());
      case U'u':
        return single(take_hexadecimal(4, 4));
      default:
        break;
    }
    const bool is_alphanumeric =
        code < 0x80 && ((code >= U'0' && code <= U'9') || ((code | 0x20) >= U'a' && (code | 0x20) <= U'z'));
    if (is_alphanumeric || code >= 0x80) refuse("none but known escapes");
    return single(code);
  }

  CodePointSet parse_property(bool is_negated) {
    if (!take(U"{")) refuse("\\p{Name}");
    if (take(U"^")) is_negated = !is_negated;
    std::string name;
    while (!take(U"}")) append_utf8(name, take_any());
    const auto set = set_of_category(name);
    if (!set) refuse("a general category such as L or Lu, not '" + name + "',");
    return is_negated ? set->complement() : *set;
  }

  char32_t parse_hexadecimal() {
    if (!take(U"{")) return take_hexadecimal(1, 2);
    const char32_t code = take_hexadecimal(1, 6);
    if (!take(U"}")) refuse("'}'");
    return code;
  }
};

// Reads a whole pattern.
class RegexParser : SetParser {
 public:
  RegexParser(std::string_view pattern, const std::string& place) : SetParser(pattern, place) {}

  ParsedRegex parse() {
    parse_alternatives(Letters::kExact, 0);
    if (!at_end()) refuse("no ')' without '('");
    return std::move(result_);
  }

 private:
  static constexpr int kMostDepth = 100;

  void write(std::string text) { result_.parts.push_back({std::move(text), std::nullopt}); }
  void write(CodePointSet set) {
    const auto known = std::ranges::find(result_.sets, set.ranges(), &CodePointSet::ranges);
    const auto index = static_cast<std::size_t>(known - result_.sets.begin());
    if (known == result_.sets.end()) result_.sets.push_back(std::move(set));
    if (result_.sets.size() > kMostSets) refuse("fewer characters");
    result_.parts.push_back({"", index});
  }

  void parse_alternatives(Letters letters, int depth) {
    if (depth > kMostDepth) refuse("fewer groups in groups");
    char32_t before = 0;  // the previous letter
    while (!at_end() && !next_is(U")")) {
      if (take(U"|")) {
        write("|");
        before = 0;
        continue;
      }
      const char32_t letter = parse_atom(letters, depth);
      if (letters == Letters::kAnyCase) check_pair(before, letter);
      before = letter;
    }
  }

  // Without regard to letter case, one ligature or sharp s may match two letters: "ss", "st", "ff", "fi", "fl".
  void check_pair(char32_t first, char32_t second) const {
    const char32_t a = first | 0x20;
    const char32_t b = second | 0x20;
    const bool folds = (a == U's' && (b == U's' || b == U't')) || (a == U'f' && (b == U'f' || b == U'i' || b == U'l'));
    if (folds) refuse("no letters that one character folds to in (?i:...)");
  }

  // Parses an atom with its quantifier. Returns the character that it matches in (?i:...), or 0 if it is not a single
  // character.
  char32_t parse_atom(Letters letters, int depth) {
    if (take(U"(")) {
      parse_group(letters, depth);
      parse_quantifier();
      return 0;
    }
    if (take(U"^")) return write("(?:\\A|(?<=", single(U'\n'), ")(?!\\z))");
    if (take(U"$")) return write("(?=", single(U'\n'), "|\\z)");
    if (take(U"\\A")) return write("\\A", std::nullopt, "");
    if (take(U"\\z")) return write("\\z", std::nullopt, "");
    if (take(U"\\Z")) return write("(?=", single(U'\n'), "?\\z)");
    CodePointSet set = parse_set_or_character(letters);
    const char32_t letter = letters == Letters::kAnyCase ? letter_of(set) : 0;
    write(std::move(set));
    return parse_quantifier() ? 0 : letter;
  }

  char32_t write(std::string before, std::optional<CodePointSet> set, std::string after) {
    write(std::move(before));
    if (set) write(std::move(*set));
    write(std::move(after));
    return 0;
  }

  void parse_group(Letters letters, int depth) {
    std::string open = "(?:";  // capturing groups become non-capturing
    if (take(U"?")) {
      if (take(U"i:")) {
        letters = Letters::kAnyCase;
      } else if (take(U"-i:")) {
        letters = Letters::kExact;
      } else if (take(U"=")) {
        open = "(?=";
      } else if (take(U"!")) {
        open = "(?!";
      } else if (take(U"<=")) {
        open = "(?<=";
      } else if (take(U"<!")) {
        open = "(?<!";
      } else if (take(U">")) {
        open = "(?>";
      } else if (!take(U":")) {
        refuse("one of (?:  (?i:  (?-i:  (?=  (?!  (?<=  (?<!  (?>");
      }
    } else if (next_is(U"*")) {
      refuse("a group");
    }
    write(open);
    parse_alternatives(letters, depth + 1);
    if (!take(U")")) refuse("')'");
    write(")");
  }

  bool parse_quantifier() {
    const auto counts = parse_counts();
    if (counts) {
      write(*counts);
      if (next_is(U"?") || next_is(U"+")) {
        // Oniguruma treats {n,m}+ and {n}? as repetitions of the repetition.
        if (next_is(U"+") || counts->find(',') == std::string::npos) refuse("no + behind {n,m}, and no ? behind {n}");
        ++position_;
        write("?");
      }
    } else if (next_is(U"*") || next_is(U"+") || next_is(U"?")) {
      std::string text(1, static_cast<char>(take_any()));
      if (take(U"+")) {
        text += '+';
      } else if (take(U"?")) {
        text += '?';
      }
      write(text);
    } else {
      return false;
    }
    if (next_is(U"*") || next_is(U"+") || next_is(U"?")) refuse("one quantifier");
    return true;
  }

  // Parses {n} {n,} {n,m} {,m} and returns it in PCRE2's syntax; nullopt if the brace is ordinary text.
  std::optional<std::string> parse_counts() {
    if (!next_is(U"{")) return std::nullopt;
    const std::size_t begin = position_++;
    const std::string least = take_digits();
    const bool has_comma = take(U",");
    const std::string most = has_comma ? take_digits() : "";
    if ((least.empty() && most.empty()) || !take(U"}")) {
      position_ = begin;
      return std::nullopt;
    }
    return "{" + (least.empty() ? "0" : least) + (has_comma ? "," : "") + most + "}";
  }

  ParsedRegex result_;
};

// Divides all code points into kinds: code points of a kind are in the same sets. Returns for each kind to which sets
// it belongs.
std::vector<std::vector<bool>> divide(const std::vector<CodePointSet>& sets, std::vector<std::uint8_t>& kinds,
                                      const std::string& place) {
  std::vector<char32_t> borders = {0, kNumCodePoints};
  for (const CodePointSet& set : sets) {
    for (const auto& range : set.ranges()) borders.insert(borders.end(), {range.begin, range.end});
  }
  std::ranges::sort(borders);
  borders.erase(std::unique(borders.begin(), borders.end()), borders.end());
  std::map<std::vector<bool>, std::size_t> known;
  kinds.resize(kNumCodePoints);
  for (std::size_t i = 0; i + 1 < borders.size(); ++i) {
    std::vector<bool> membership;
    for (const CodePointSet& set : sets) membership.push_back(set.contains(borders[i]));
    const std::size_t kind = known.emplace(std::move(membership), known.size()).first->second;
    D9D_CHECK(kind < kMostKinds, ConfigError, place, "expected a pattern whose sets tell at most ", kMostKinds,
              " kinds of characters apart, got more. Use fewer sets or characters.");
    std::fill(kinds.begin() + borders[i], kinds.begin() + borders[i + 1], static_cast<std::uint8_t>(kind));
  }
  std::vector<std::vector<bool>> memberships(known.size());
  for (const auto& [membership, kind] : known) memberships[kind] = membership;
  return memberships;
}

}  // namespace

RegexOverKinds translate_regex(std::string_view pattern, const std::string& place) {
  const ParsedRegex parsed = RegexParser(pattern, place).parse();
  RegexOverKinds result;
  const auto memberships = divide(parsed.sets, result.kinds, place);
  for (const auto& [text, set] : parsed.parts) {
    result.pattern += text;
    if (!set) continue;
    std::string members;
    for (std::size_t kind = 0; kind < memberships.size(); ++kind) {
      if (!memberships[kind][*set]) continue;
      char number[8];
      std::snprintf(number, sizeof number, "\\x%02x", static_cast<unsigned>(kind));
      members += number;
    }
    result.pattern += members.empty() ? "(?!)" : "[" + members + "]";
  }
  return result;
}

}  // namespace d9d::detail
