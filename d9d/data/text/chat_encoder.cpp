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

std::string joined(const std::set<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += cat(all.empty() ? "" : ", ", text);
  return all;
}

std::string roles_in(const std::vector<ChatMessage>& messages) {
  std::set<std::string> roles;
  for (const ChatMessage& message : messages) roles.insert(message.role);
  return joined(roles);
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
    std::set<std::string> other_keys;
    const std::vector<ChatMessage> messages = read_chat_messages(json, "messages", &other_keys);
    const bool has_thoughts =
        std::ranges::any_of(messages, [](const ChatMessage& each) { return each.reasoning_content.has_value(); });
    if (has_thoughts && family_ != ChatFamily::kQwen3) other_keys.insert("reasoning_content");
    if (!other_keys.empty()) {
      const std::scoped_lock lock(mutex_);
      other_keys_.merge(other_keys);
    }
    const EncodedChat chat = encode_chat(tokenizer(), render_chat(family_, messages));
    EncodedRow row{.tokens = {chat.ids.begin(), chat.ids.end()}, .targets = ranges_of(chat.is_assistant)};
    if (row.targets->empty()) {
      return {.problem = cat("a conversation in which the assistant says nothing, of the roles ", roles_in(messages))};
    }
    if (end) row.tokens.push_back(*end);
    return row;
  } catch (const ConfigError& error) {
    return {.problem = error.what()};
  }
}

std::string ChatEncoder::remark() const {
  const std::scoped_lock lock(mutex_);
  if (other_keys_.empty()) return {};
  return cat("keys of messages that the chat template ", enum_name(family_), " does not read: ", joined(other_keys_),
             ". They change nothing");
}

std::string ChatEncoder::fingerprint() const {
  return cat(TokenizerEncoder::fingerprint(), " chat ", enum_name(family_));
}

}  // namespace d9d
