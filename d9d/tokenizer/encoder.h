// The state of one call of Tokenizer::encode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "d9d/tokenizer/tokenizer.h"
#include "d9d/tokenizer/tokenizer_state.h"

namespace d9d::detail {

class Encoder {
 public:
  // `text` is valid UTF-8. Ids are appended to `ids`.
  Encoder(const TokenizerState& state, EncodeScratch& scratch, std::string_view text, const EncodeOptions& options,
          std::vector<std::uint32_t>& ids)
      : state_(state), scratch_(scratch), text_(text), options_(options), ids_(ids) {}

  void run();
  // Call it after run() with with_offsets: returns one offset for each id that was appended.
  [[nodiscard]] std::vector<TokenOffset> offsets() const;

 private:
  // A part of the normalised text. `origins[i]` is a byte of text_ within the character from which byte i was made; if
  // origins is null, it is the byte `shift + i`.
  struct Piece {
    std::string_view text;
    const std::uint32_t* origins;
    std::size_t shift;

    [[nodiscard]] Piece part(std::size_t begin, std::size_t end) const {
      return {text.substr(begin, end - begin), origins == nullptr ? nullptr : origins + begin, shift + begin};
    }
    [[nodiscard]] std::size_t origin(std::size_t byte) const {
      return origins == nullptr ? shift + byte : origins[byte];
    }
  };
  struct Source {  // of a token: a byte of its first and its last character in text_
    std::size_t first;
    std::size_t last;
    std::uint32_t spaces_before;
    std::uint32_t spaces_behind;
  };

  void encode_text(std::size_t begin, std::size_t end);  // a part of text_ between added tokens
  void encode_normalized(const Piece& piece);
  void encode_words(const Piece& piece);
  void encode_words_without_prefix(const Piece& piece);
  void add_token(TokenId id, const Piece& source);

  const TokenizerState& state_;
  EncodeScratch& scratch_;
  std::string_view text_;
  EncodeOptions options_;
  std::vector<std::uint32_t>& ids_;
  std::vector<Source> sources_;  // of the tokens of the text, without those of the template
};

}  // namespace d9d::detail
