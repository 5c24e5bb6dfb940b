#include "d9d/tokenizer/unicode/normalization.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "d9d/tokenizer/unicode/normalization_tables.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::detail {
namespace {

// A character of the result and its relation to the input. `change` is 1 for an additional character, 0 for one that
// replaces one character of the input, and -n for one that also replaces the n characters after it. These numbers
// determine the origins; the rules by which they change are those of the tokenizers library.
struct Change {
  char32_t code_point;
  int change;
  std::uint8_t combining_class;
};

std::vector<Change> decompose(const NormalizationTables& tables, NormalForm form, std::u32string_view input) {
  std::vector<Change> result;
  std::u32string decomposition;
  for (const char32_t code : input) {
    decomposition.clear();
    tables.append_decomposition(form, code, decomposition);
    for (std::size_t i = 0; i < decomposition.size(); ++i) {
      result.push_back({decomposition[i], i == 0 ? 0 : 1, tables.combining_class(decomposition[i])});
    }
  }
  const auto is_starter = [](const Change& change) { return change.combining_class == 0; };
  for (auto begin = result.begin(); begin != result.end();) {  // canonical order: marks sorted between starters
    const auto end = std::find_if(begin + 1, result.end(), is_starter);
    std::ranges::stable_sort(begin, end, {}, &Change::combining_class);
    begin = end;
  }
  return result;
}

// The canonical composition algorithm (Unicode, section 3.11).
class Composition {
 public:
  explicit Composition(const NormalizationTables& tables) : tables_(tables) {}

  void add(const Change& next) {
    if (!starter_) {
      if (next.combining_class != 0) return result_.push_back(next);
      starter_ = next;
      return;
    }
    const bool is_blocked = !marks_.empty() && marks_.back().combining_class >= next.combining_class;
    const char32_t composed = is_blocked ? 0 : tables_.compose(starter_->code_point, next.code_point);
    if (composed != 0) {
      starter_->code_point = composed;
      starter_->change += next.change - 1;
    } else if (next.combining_class == 0) {
      flush();
      starter_ = next;
    } else {
      marks_.push_back(next);
    }
  }

  [[nodiscard]] std::vector<Change> finish() {
    if (starter_) flush();
    return std::move(result_);
  }

 private:
  void flush() {
    result_.push_back(*starter_);
    result_.insert(result_.end(), marks_.begin(), marks_.end());
    marks_.clear();
  }

  const NormalizationTables& tables_;
  std::optional<Change> starter_;
  std::vector<Change> marks_;  // marks after the starter that did not compose with it
  std::vector<Change> result_;
};

// Appends the normalised form of text[begin, end), which has characters that the form may change, to `result`.
void append_normalized(const NormalizationTables& tables, NormalForm form, std::string_view text, std::size_t begin,
                       std::size_t end, NormalizedText& result) {
  const std::u32string input = to_utf32(text.substr(begin, end - begin));
  std::vector<Change> changes = decompose(tables, form, input);
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    Composition composition(tables);
    for (const Change& change : changes) composition.add(change);
    changes = composition.finish();
  }
  std::size_t position = begin;
  for (const Change& change : changes) {
    append_utf8(result.text, change.code_point);
    const bool is_addition = change.change > 0 && position > 0;
    result.origins.resize(result.text.size(), static_cast<std::uint32_t>(is_addition ? position - 1 : position));
    for (int i = change.change; i <= 0 && position < end; ++i) position += code_point_at(text, position).length;
  }
}

}  // namespace

bool is_normalized(NormalForm form, std::string_view text) {
  const NormalizationTables& tables = normalization_tables();
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint point = code_point_at(text, position);
    if (point.value >= 0x80 && !tables.is_inert(form, point.value)) return false;
    position += point.length;
  }
  return true;
}

NormalizedText normalize(NormalForm form, std::string_view text) {
  const NormalizationTables& tables = normalization_tables();
  NormalizedText result;
  result.text.reserve(text.size());
  result.origins.reserve(text.size());
  std::size_t copied = 0;
  const auto copy_until = [&](std::size_t end) {
    for (std::size_t i = copied; i < end; ++i) result.origins.push_back(static_cast<std::uint32_t>(i));
    result.text.append(text, copied, end - copied);
  };
  std::size_t last = 0;  // begin of the character before `position`, which may compose with the next
  for (std::size_t position = 0; position < text.size();) {
    CodePoint point = code_point_at(text, position);
    if (tables.is_inert(form, point.value)) {
      last = position;
      position += point.length;
      continue;
    }
    copy_until(last);
    do {
      position += point.length;
      if (position == text.size()) break;
      point = code_point_at(text, position);
    } while (!tables.is_inert(form, point.value));
    append_normalized(tables, form, text, last, position, result);
    copied = last = position;
  }
  copy_until(text.size());
  return result;
}

}  // namespace d9d::detail
