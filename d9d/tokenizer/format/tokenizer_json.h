// Reads the parts of a byte-level BPE tokenizer from the JSON that Hugging Face's tokenizers write. Throws ConfigError
// that names file and key for a feature that is not supported.
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
  bool add_prefix_space = false;  // inserts a space before a piece of text that does not begin with one
  LineCut line_cut = LineCut::kNone;
  SplitterChain splitters;
};

struct PostProcessor {
  // One element for each step that trims white space from the offsets; the value is its add_prefix_space.
  std::vector<bool> trims;
  std::vector<TokenId> before;  // template tokens before the text
  std::vector<TokenId> after;
};

[[nodiscard]] std::unique_ptr<BpeModel> read_model(const JsonNode& model);
[[nodiscard]] std::vector<AddedToken> read_added_tokens(const std::optional<JsonNode>& tokens, const BpeModel& model);
[[nodiscard]] std::vector<NormalForm> read_normalizer(const std::optional<JsonNode>& normalizer);
[[nodiscard]] PreTokenizer read_pre_tokenizer(const JsonNode& pre_tokenizer);
[[nodiscard]] PostProcessor read_post_processor(const std::optional<JsonNode>& post_processor);
// Checks that the decoder is the only supported one, which converts tokens to bytes.
void check_decoder(const JsonNode& decoder);

}  // namespace d9d::detail
