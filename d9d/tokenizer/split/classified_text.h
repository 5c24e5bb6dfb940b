// A text whose characters are read together with their classes, for scanners and predicates.
#pragma once

#include <cstddef>
#include <string_view>

#include "d9d/tokenizer/unicode/categories.h"
#include "d9d/tokenizer/unicode/utf8.h"

namespace d9d::detail {

class ClassifiedText {
 public:
  // `text` is valid UTF-8 and must outlive this object.
  explicit ClassifiedText(std::string_view text) : text_(text), classes_(code_point_classes()) {}

  struct Character {
    ClassBits bits;
    std::size_t end;  // position after it
  };

  [[nodiscard]] std::size_t size() const { return text_.size(); }
  // Expects position < size().
  [[nodiscard]] char byte(std::size_t position) const { return text_[position]; }
  [[nodiscard]] Character at(std::size_t position) const {
    const auto first = static_cast<unsigned char>(text_[position]);
    if (first < 0x80) return {classes_[first], position + 1};
    const CodePoint point = code_point_at(text_, position);
    return {classes_[point.value], position + point.length};
  }
  // The classes at `position`; 0 at the end of the text and after it.
  [[nodiscard]] ClassBits bits(std::size_t position) const {
    return position < size() ? at(position).bits : ClassBits{0};
  }

  // Skips characters from `position` on that have one of the classes `wanted`; returns the position after them.
  [[nodiscard]] std::size_t skip(std::size_t position, ClassBits wanted) const {
    while (position < size()) {
      const Character next = at(position);
      if ((next.bits & wanted) == 0) break;
      position = next.end;
    }
    return position;
  }
  // Skips characters that have none of the classes `unwanted`.
  [[nodiscard]] std::size_t skip_others(std::size_t position, ClassBits unwanted) const {
    while (position < size()) {
      const Character next = at(position);
      if ((next.bits & unwanted) != 0) break;
      position = next.end;
    }
    return position;
  }

 private:
  std::string_view text_;
  const TwoStageTable<ClassBits>& classes_;
};

}  // namespace d9d::detail
