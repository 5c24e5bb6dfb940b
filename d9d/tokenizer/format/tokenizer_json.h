// Reads the parts of a byte-level BPE tokenizer from the JSON that Hugging Face's tokenizers write. What a part
// cannot do is refused by file and key.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/tokenizer/added/added_tokens.h"
#include "d9d/tokenizer/bpe/bpe_model.h"
#include "d9d/tokenizer/format/json_node.h"
#include "d9d/tokenizer/split/line_cut.h"
#include "d9d/tokenizer/split/splitter.h"
#include "d9d/tokenizer/unicode/normalization.h"

namespace d9d::detail {

struct PreTokenizer {
  bool add_prefix_space = false;  // before a piece of text that begins with none
  LineCut line_cut = LineCut::kNone;
  SplitterChain splitters;
};

struct PostProcessor {
  // Each cuts white space off the offsets; the value is its add_prefix_space.
  std::vector<bool> trims;
  std::vector<TokenId> before;  // tokens of the template
  std::vector<TokenId> after;
};

[[nodiscard]] std::unique_ptr<BpeModel> read_model(const JsonNode& model);
[[nodiscard]] std::vector<AddedToken> read_added_tokens(const std::optional<JsonNode>& tokens, const BpeModel& model);
[[nodiscard]] std::vector<NormalForm> read_normalizer(const std::optional<JsonNode>& normalizer);
[[nodiscard]] PreTokenizer read_pre_tokenizer(const JsonNode& pre_tokenizer);
[[nodiscard]] PostProcessor read_post_processor(const std::optional<JsonNode>& post_processor);
// Only one kind of decoder is read: tokens to bytes.
void check_decoder(const JsonNode& decoder);

}  // namespace d9d::detail
