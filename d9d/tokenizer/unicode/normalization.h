// Unicode normalisation as in Hugging Face's tokenizers (0.23): it uses tables of Unicode 9 and records the origin of
// each byte.
//
// Example
//   if (!is_normalized(NormalForm::kNfc, text)) {
//     const NormalizedText composed = normalize(NormalForm::kNfc, text);   // composed.text, composed.origins
//   }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace d9d::detail {

enum class NormalForm : std::uint8_t { kNfc, kNfd, kNfkc, kNfkd };

struct NormalizedText {
  std::string text;
  // For each byte of `text`, a byte of the input within the character from which it was made. The values never
  // decrease.
  std::vector<std::uint32_t> origins;
};

// Returns true only if normalize() would not change the text. May return false for a text that it would not change.
[[nodiscard]] bool is_normalized(NormalForm form, std::string_view text);

// `text`: valid UTF-8 of at most 4 GiB.
[[nodiscard]] NormalizedText normalize(NormalForm form, std::string_view text);

}  // namespace d9d::detail
