#include "d9d/data/text/chat_encoder.h"

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/tokenizer/chat/encode_chat.h"

namespace d9d {

namespace {

std::vector<TokenRange> ranges_of(const std::vector<bool>& is_assistant) {
  std::vector<TokenRange> ranges;
  for (std::int64_t i = 0; i < std::ssize(is_assistant); ++i) {
    if (!is_assistant[i]) continue;
    if (ranges.empty() || ranges.back().end != i) ranges.push_back({.begin = i, .end = i});
    ++ranges.back().end;
  }
  return ranges;
}

// "user, bot": each once, in their order.
std::string roles_of(const std::vector<ChatMessage>& messages) {
  std::vector<std::string> roles;
  for (const ChatMessage& message : messages) {
    if (std::ranges::find(roles, message.role) == roles.end()) roles.push_back(message.role);
  }
  std::string text;
  for (const std::string& role : roles) text += (text.empty() ? "" : ", ") + role;
  return text;
}

}  // namespace

ChatEncoder::ChatEncoder(const std::filesystem::path& tokenizer, ChatFamily family)
    : TokenizerEncoder(tokenizer, {.add_special_tokens = false}), family_(family) {
  for (const std::string_view token : special_tokens(family)) {
    D9D_CHECK(id_of(token), ConfigError,
              "[data::ChatEncoder] expected a tokenizer with the tokens of the chat template '", enum_name(family),
              "', got none '", token, "' in '", tokenizer.string(),
              "'. Take the tokenizer or the template that belongs to the other.");
  }
}

EncodedRow ChatEncoder::encode_row(std::span<const std::string_view> columns, std::optional<std::int64_t> end) const {
  D9D_ASSERT(columns.size() == 1, columns.size(), " columns of a conversation");
  const auto json = nlohmann::json::parse(columns.front(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return {.problem = "messages that are no JSON"};
  try {
    const std::vector<ChatMessage> messages = read_chat_messages(json, "messages");
    const EncodedChat chat = encode_chat(tokenizer(), render_chat(family_, messages));
    EncodedRow row{.tokens = {chat.ids.begin(), chat.ids.end()}, .targets = ranges_of(chat.is_assistant)};
    if (row.targets->empty()) {
      return {.problem = cat("a conversation in which the assistant says nothing: its roles are ", roles_of(messages))};
    }
    if (end) row.tokens.push_back(*end);
    return row;
  } catch (const ConfigError& error) {
    return {.problem = error.what()};
  }
}

std::string ChatEncoder::fingerprint() const {
  return cat(TokenizerEncoder::fingerprint(), " chat ", enum_name(family_));
}

}  // namespace d9d
