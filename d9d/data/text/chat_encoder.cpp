#include "d9d/data/text/chat_encoder.h"

#include <utility>
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

std::string roles_in(std::string_view messages) {
  std::set<std::string> roles;
  for (const nlohmann::json& message : nlohmann::json::parse(messages)) {
    const nlohmann::json role = message.value("role", nlohmann::json());
    roles.insert(role.is_string() ? role.get<std::string>() : role.dump());
  }
  return joined(roles);
}

}  // namespace

ChatEncoder::ChatEncoder(const std::filesystem::path& tokenizer, ChatRenderer renderer)
    : TokenizerEncoder(tokenizer, {.add_special_tokens = false}), renderer_(std::move(renderer)) {
  for (const std::string_view token : renderer_.special_tokens()) {
    D9D_CHECK(id_of(token), ConfigError,
              "[data::ChatEncoder] expected a tokenizer with the tokens of the chat template '", renderer_.name(),
              "', got none '", token, "' in '", tokenizer.string(),
              "'. Take the tokenizer or the template that belongs to the other.");
  }
}

EncodedRow ChatEncoder::encode_row(std::span<const std::string_view> columns, std::optional<std::int64_t> end) const {
  D9D_ASSERT(columns.size() == 1 || columns.size() == 2, columns.size(), " columns of a conversation");
  try {
    std::set<std::string> other_keys;
    const std::string_view tools = columns.size() == 2 ? columns[1] : "";
    if (columns.size() == 2) (is_no_tools(tools) ? lacks_tools_ : has_tools_) = true;
    const RenderedChat chat = renderer_.render(columns[0], tools, {}, &other_keys);
    if (!other_keys.empty()) {
      const std::scoped_lock lock(mutex_);
      other_keys_.merge(other_keys);
    }
    const EncodedChat encoded = encode_chat(tokenizer(), chat);
    EncodedRow row{.tokens = {encoded.ids.begin(), encoded.ids.end()}, .targets = ranges_of(encoded.is_assistant)};
    if (!renderer_.marks_answers()) {
      for (TokenRange& range : *row.targets) range.end = end_of_answer(row.tokens, range);
    }
    if (row.targets->empty()) {
      return {.problem =
                  cat("a conversation in which the assistant says nothing, of the roles ", roles_in(columns[0]))};
    }
    if (end) row.tokens.push_back(*end);
    return row;
  } catch (const ConfigError& error) {
    return {.problem = error.what()};
  }
}

std::int64_t ChatEncoder::end_of_answer(std::span<const std::int64_t> tokens, const TokenRange& range) const {
  for (std::int64_t i = range.end; i > range.begin; --i) {
    if (is_special(tokens[i - 1])) return i;
    if (decode(tokens.subspan(static_cast<std::size_t>(i) - 1, 1)).find_first_not_of(" \n") != std::string::npos) break;
  }
  return range.end;
}

std::string ChatEncoder::remark() const {
  const std::scoped_lock lock(mutex_);
  const std::string keys = other_keys_.empty() ? ""
                                               : cat("keys of messages that the chat template ", renderer_.name(),
                                                     " does not read: ", joined(other_keys_), ". They change nothing");
  if (!lacks_tools_ || has_tools_) return keys;
  return cat("no conversation has tools in tools_column. Look at its name", keys.empty() ? "" : "; ", keys);
}

std::string ChatEncoder::fingerprint() const {
  return cat(TokenizerEncoder::fingerprint(), " chat ", renderer_.fingerprint());
}

}  // namespace d9d
