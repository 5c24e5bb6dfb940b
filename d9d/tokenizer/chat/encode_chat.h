// Encodes a conversation as tokens, with a loss mask of the tokens that the assistant says.
//
// Example
//   const d9d::EncodedChat chat = d9d::encode_chat(tokenizer, d9d::render_chat(family, messages));
//   labels[i] = chat.is_assistant[i] ? chat.ids[i] : d9d::kIgnoreIndex;
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/tokenizer/chat/chat_template.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

struct EncodedChat {
  std::vector<std::uint32_t> ids;
  // For each id, whether any character of the token is said by the assistant, as in return_assistant_tokens_mask of
  // transformers.
  std::vector<bool> is_assistant;
};

[[nodiscard]] EncodedChat encode_chat(const Tokenizer& tokenizer, const RenderedChat& chat);

}  // namespace d9d
