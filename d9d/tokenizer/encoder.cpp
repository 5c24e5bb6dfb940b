#include "d9d/tokenizer/encoder.h"

#include <algorithm>
#include <optional>
#include <string>

#include "d9d/tokenizer/split/classified_text.h"

namespace d9d::detail {
namespace {

// Whether offsets exclude the character: white space, and the character that represents the space in the byte alphabet.
bool is_trimmed(char32_t code_point) { return code_point == 0x120 || (code_point_classes()[code_point] & kSpace) != 0; }

std::uint32_t spaces_before(std::string_view text) {
  std::uint32_t count = 0;
  for (std::size_t position = 0; position < text.size(); ++count) {
    const CodePoint point = code_point_at(text, position);
    if (!is_trimmed(point.value)) break;
    position += point.length;
  }
  return count;
}

std::uint32_t spaces_behind(std::string_view text) {
  std::uint32_t count = 0;
  for (std::size_t end = text.size(); end > 0; ++count) {
    const CodePoint point = code_point_before(text, end);
    if (!is_trimmed(point.value)) break;
    end -= point.length;
  }
  return count;
}

// The same for the bytes of a token: in the byte alphabet, only the space byte is such a character.
std::uint32_t space_bytes_before(std::string_view bytes) {
  return static_cast<std::uint32_t>(std::min(bytes.find_first_not_of(' '), bytes.size()));
}
std::uint32_t space_bytes_behind(std::string_view bytes) {
  return static_cast<std::uint32_t>(bytes.size() - (bytes.find_last_not_of(' ') + 1));
}

// Counts the characters of a text up to positions that usually increase.
class CharacterCounter {
 public:
  explicit CharacterCounter(std::string_view text) : text_(text) {}

  // The index of the character that contains the byte at `position`.
  std::int64_t index_of(std::size_t position) {
    if (position + 1 < counted_) {  // rare: only if added tokens overlap
      counted_ = 0;
      num_begun_ = 0;
    }
    num_begun_ += static_cast<std::int64_t>(count_characters(text_.substr(counted_, position + 1 - counted_)));
    counted_ = position + 1;
    return num_begun_ - 1;
  }

 private:
  std::string_view text_;
  std::size_t counted_ = 0;
  std::int64_t num_begun_ = 0;
};

}  // namespace

void Encoder::run() {
  const PostProcessor& post = state_.post_processor;
  if (options_.add_special_tokens) ids_.insert(ids_.end(), post.before.begin(), post.before.end());
  const auto special = options_.split_special_tokens ? SpecialTokens::kAsText : SpecialTokens::kRecognize;
  auto& matches = scratch_.matches;
  state_.added_in_text.find(text_, special, matches);
  std::size_t covered = 0;
  for (const AddedMatch& match : matches) {
    if (covered < match.begin) encode_text(covered, match.begin);
    add_token(match.id, Piece{text_, nullptr, 0}.part(match.begin, match.end));
    covered = match.end;
  }
  encode_text(covered, text_.size());
  if (options_.add_special_tokens) ids_.insert(ids_.end(), post.after.begin(), post.after.end());
}

void Encoder::encode_text(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  const std::string_view text = text_.substr(begin, end - begin);
  std::optional<NormalizedText> normalized;
  for (const NormalForm form : state_.normal_forms) {
    if (is_normalized(form, normalized ? normalized->text : text)) continue;
    NormalizedText next = normalize(form, normalized ? normalized->text : text);
    for (std::uint32_t& origin : next.origins) {
      origin = normalized ? normalized->origins[origin] : static_cast<std::uint32_t>(begin + origin);
    }
    normalized = std::move(next);
  }
  encode_normalized(normalized ? Piece{normalized->text, normalized->origins.data(), 0} : Piece{text, nullptr, begin});
}

void Encoder::encode_normalized(const Piece& piece) {
  const auto special = options_.split_special_tokens ? SpecialTokens::kAsText : SpecialTokens::kRecognize;
  auto& matches = scratch_.matches_in_piece;
  state_.added_in_normalized_text.find(piece.text, special, matches);
  std::size_t covered = 0;
  for (const AddedMatch& match : matches) {
    if (covered < match.begin) encode_words(piece.part(covered, match.begin));
    add_token(match.id, piece.part(match.begin, match.end));
    covered = match.end;
  }
  if (covered < piece.text.size()) encode_words(piece.part(covered, piece.text.size()));
}

void Encoder::encode_words(const Piece& piece) {
  if (!state_.pre_tokenizer.add_prefix_space || piece.text.starts_with(' ')) return encode_words_without_prefix(piece);
  std::string text(1, ' ');
  text.append(piece.text);
  std::vector<std::uint32_t> origins = {static_cast<std::uint32_t>(piece.origin(0))};  // of the space: the first byte
  for (std::size_t i = 0; i < piece.text.size(); ++i) origins.push_back(static_cast<std::uint32_t>(piece.origin(i)));
  encode_words_without_prefix({text, origins.data(), 0});
}

void Encoder::encode_words_without_prefix(const Piece& piece) {
  state_.pre_tokenizer.splitters.split(piece.text, scratch_.words, scratch_.other_words);
  for (const Span& span : scratch_.words) {
    const std::string_view word = piece.text.substr(span.begin, span.end - span.begin);
    const auto compute = [&](std::vector<TokenId>& ids) { state_.model->encode_word(word, scratch_.merges, ids); };
    const auto ids = scratch_.cache.find(word, piece.text.size() - span.begin, compute);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
    if (!options_.with_offsets) continue;
    std::size_t begin = span.begin;
    for (const TokenId id : ids) {
      const std::string_view bytes = state_.tokens[id].bytes_in_words;
      const std::size_t end = begin + bytes.size();
      sources_.push_back(
          {piece.origin(begin), piece.origin(end - 1), space_bytes_before(bytes), space_bytes_behind(bytes)});
      begin = end;
    }
  }
}

void Encoder::add_token(TokenId id, const Piece& source) {
  ids_.push_back(id);
  if (!options_.with_offsets) return;
  const std::size_t last = source.text.size() - 1;
  sources_.push_back({source.origin(0), source.origin(last), spaces_before(source.text), spaces_behind(source.text)});
}

std::vector<TokenOffset> Encoder::offsets() const {
  const PostProcessor& post = state_.post_processor;
  std::vector<TokenOffset> offsets(options_.add_special_tokens ? post.before.size() : 0);
  CharacterCounter counter(text_);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    TokenOffset offset;
    offset.begin = counter.index_of(source.first);
    offset.end = counter.index_of(source.last) + 1;
    for (const bool add_prefix_space : post.trims) {
      // A single space at the begin of the text may be the one that was added, which is not part of the text.
      const bool is_first = i == 0 || offset.begin == 0;
      const bool keeps = is_first && add_prefix_space && source.spaces_before == 1;
      if (!keeps) offset.begin = std::min<std::int64_t>(offset.begin + source.spaces_before, offset.end);
      if (offset.end >= source.spaces_behind) offset.end = std::max(offset.end - source.spaces_behind, offset.begin);
    }
    offsets.push_back(offset);
  }
  if (options_.add_special_tokens) offsets.resize(offsets.size() + post.after.size());
  return offsets;
}

}  // namespace d9d::detail
