#include "d9d/data/text/pair_encoder.h"

#include <algorithm>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d {

namespace {

using Json = nlohmann::ordered_json;  // templates see the keys of messages in their order

// Throws ConfigError, as the renderer does for what it cannot render.
Json messages_in(std::string_view column, const char* what) {
  Json messages = Json::parse(column, nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(messages.is_array() && std::ranges::all_of(messages, &Json::is_object), ConfigError, what,
            " that is no list of messages");
  return messages;
}

// In any order of keys.
bool is_same_message(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

std::string role_of_last(const Json& messages) {
  const Json role = messages.back().value("role", Json());
  return role.is_string() ? role.get<std::string>() : std::string();
}

bool says_nothing(const Json& message) {
  if (!message.is_object()) return false;
  for (const auto& [key, value] : message.items()) {
    const bool is_empty = value.is_null() || value.empty() || value == "";
    if (key != "role" && key != "name" && !is_empty) return false;
  }
  return true;
}

// A conversation, of which the first `num_prompt` messages are the prompt.
struct Conversations {
  Json chosen, rejected;
  std::int64_t num_prompt = 0;
};

Conversations conversations_in(std::span<const std::string_view> columns, bool has_prompt) {
  Conversations pair{.chosen = messages_in(columns[0], "a chosen answer"),
                     .rejected = messages_in(columns[1], "a rejected answer")};
  D9D_CHECK(pair.chosen != pair.rejected, ConfigError, "a pair of equal answers");
  if (has_prompt) {
    const Json prompt = messages_in(columns[2], "a prompt");
    for (Json* const answer : {&pair.chosen, &pair.rejected})
      answer->insert(answer->begin(), prompt.begin(), prompt.end());
    pair.num_prompt = std::ssize(prompt);
  } else {
    const auto [end, other] = std::ranges::mismatch(pair.chosen, pair.rejected, is_same_message);
    pair.num_prompt = end - pair.chosen.begin();
  }
  D9D_CHECK(pair.num_prompt > 0, ConfigError,
            "a pair without a prompt: its conversations differ from the first message on");
  for (const Json* const answer : {&pair.chosen, &pair.rejected}) {
    D9D_CHECK(std::ssize(*answer) > pair.num_prompt, ConfigError, "a pair of which one answer has no messages");
    D9D_CHECK(!std::all_of(answer->begin() + pair.num_prompt, answer->end(), says_nothing), ConfigError,
              "a pair of which one answer is empty");
  }
  return pair;
}

}  // namespace

PairEncoder::Parts PairEncoder::parts_of_texts(std::span<const std::string_view> columns,
                                               std::optional<std::int64_t> end) const {
  if (columns[0].empty() || columns[1].empty()) return {.problem = "a pair of which one answer is empty"};
  Parts parts{.prompt = {tokens_before().begin(), tokens_before().end()}, .chosen = {}, .rejected = {}};
  encode(columns[2], parts.prompt);
  for (const auto& [column, answer] : {std::pair(columns[0], &parts.chosen), std::pair(columns[1], &parts.rejected)}) {
    encode(column, *answer);
    answer->insert(answer->end(), tokens_behind().begin(), tokens_behind().end());
    if (end && (answer->empty() || answer->back() != *end)) answer->push_back(*end);
  }
  return parts;
}

PairEncoder::Parts PairEncoder::parts_of_conversations(std::span<const std::string_view> columns) const {
  const auto [chosen, rejected, num_prompt] = conversations_in(columns, columns_.has_prompt);
  const Json prompt(chosen.begin(), chosen.begin() + num_prompt);
  if (role_of_last(prompt) == "assistant") return {.problem = "a pair whose prompt ends with what the assistant says"};
  const std::string_view tools = columns_.has_tools ? columns.back() : std::string_view();
  const auto text_of = [&](const Json& messages, bool add_generation_prompt) {
    return columns_.chat->render_text(messages.dump(), tools, {.add_generation_prompt = add_generation_prompt});
  };
  const std::string asked = text_of(prompt, true);
  Parts parts;
  encode(asked, parts.prompt);
  for (const auto& [messages, answer] : {std::pair(&chosen, &parts.chosen), std::pair(&rejected, &parts.rejected)}) {
    const std::string text = text_of(*messages, false);
    if (!text.starts_with(asked)) {
      return {.problem = cat("a pair whose rendered prompt is not how its conversations begin, by the chat template ",
                             columns_.chat->name())};
    }
    encode(text, *answer);
    if (std::ranges::mismatch(parts.prompt, *answer).in1 != parts.prompt.end()) {
      return {.problem =
                  cat("a pair whose prompt has other tokens alone than before its answer, since the answer's first "
                      "token takes the prompt's end, by the chat template ",
                      columns_.chat->name())};
    }
    answer->erase(answer->begin(), answer->begin() + std::ssize(parts.prompt));
  }
  return parts;
}

EncodedRow PairEncoder::encode_row(std::span<const std::string_view> columns, std::optional<std::int64_t> end) const {
  try {
    Parts parts = columns_.chat ? parts_of_conversations(columns) : parts_of_texts(columns, end);
    if (!parts.problem.empty()) return {.problem = std::move(parts.problem)};
    if (parts.prompt.empty()) return {.problem = "a pair whose prompt is empty"};
    if (parts.chosen.empty() || parts.rejected.empty()) return {.problem = "a pair of which one answer is empty"};
    if (parts.chosen == parts.rejected) return {.problem = "a pair of equal answers"};
    EncodedRow row{.tokens = std::move(parts.prompt)};
    row.targets.emplace();
    for (const std::vector<std::int64_t>& answer : {parts.chosen, parts.rejected}) {
      const std::int64_t begin = std::ssize(row.tokens);
      row.tokens.insert(row.tokens.end(), answer.begin(), answer.end());
      row.targets->push_back({.begin = begin, .end = std::ssize(row.tokens)});
    }
    return row;
  } catch (const ConfigError& error) {
    return {.problem = error.what()};
  }
}

std::string PairEncoder::fingerprint() const {
  return cat(encoder_->fingerprint(), " pair", columns_.has_prompt ? " prompt" : "", columns_.has_tools ? " tools" : "",
             columns_.chat ? cat(" chat ", columns_.chat->fingerprint()) : "");
}

}  // namespace d9d
