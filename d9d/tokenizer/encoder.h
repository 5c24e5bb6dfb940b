// One call of Tokenizer::encode.
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
  // `text` is valid UTF-8. Ids are added to `ids`.
  Encoder(const TokenizerState& state, EncodeScratch& scratch, std::string_view text, const EncodeOptions& options,
          std::vector<std::uint32_t>& ids)
      : state_(state), scratch_(scratch), text_(text), options_(options), ids_(ids) {}

  void run();
  // After run(), where offsets were asked for: one for each id that was added.
  [[nodiscard]] std::vector<TokenOffset> offsets() const;

 private:
  // A part of the normalised text. `origins[i]`: a byte of text_ that stands for the character that byte i came from;
  // without origins it is the byte `shift + i`.
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
  struct Source {  // of a token: the characters from one to another, as bytes of text_
    std::size_t first;
    std::size_t last;
    std::uint32_t spaces_before;
    std::uint32_t spaces_behind;
  };

  void encode_text(std::size_t begin, std::size_t end);  // without added tokens that stand in it as they are
  void encode_normalized(const Piece& piece);
  void encode_words(const Piece& piece);
  void encode_words_without_prefix(const Piece& piece);
  void add_token(TokenId id, const Piece& source);

  const TokenizerState& state_;
  EncodeScratch& scratch_;
  std::string_view text_;
  EncodeOptions options_;
  std::vector<std::uint32_t>& ids_;
  std::vector<Source> sources_;  // of the tokens of the text
};

}  // namespace d9d::detail
