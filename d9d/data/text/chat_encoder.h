// Encodes conversations as documents: a row's column is a JSON list of messages, and perhaps a second one a list of
// tools; a chat template renders them as text, and what the assistant says is the target.
//
// Example
//   const ChatEncoder encoder("Qwen3-0.6B/tokenizer.json", ChatRenderer(ChatFamily::kQwen3));
//   const std::string_view row = R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])";
//   const EncodedRow chat = encoder.encode_row({&row, 1}, /*end=*/{});    // targets: the tokens of Hello!<|im_end|>
#pragma once

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "d9d/data/text/tokenizer_encoder.h"
#include "d9d/tokenizer/chat/chat_renderer.h"

namespace d9d {

class ChatEncoder final : public TokenizerEncoder {
 public:
  // Throws the errors of TokenizerEncoder, and ConfigError if the tokenizer lacks one of the template's
  // special_tokens().
  ChatEncoder(const std::filesystem::path& tokenizer, ChatRenderer renderer);

  // Expects the column of messages, and perhaps that of tools. Reports as problems text that is not JSON, a
  // conversation that the template cannot render, and one in which the assistant says nothing. The token `end` is not a
  // target.
  [[nodiscard]] EncodedRow encode_row(std::span<const std::string_view> columns,
                                      std::optional<std::int64_t> end) const override;
  // Returns a line that names the message keys that the template does not read, or says that no conversation had tools
  // although there is a column of them; empty if there is nothing to say.
  [[nodiscard]] std::string remark() const override;
  [[nodiscard]] std::string fingerprint() const override;

 private:
  // Where an answer ends: white space behind the special token that ends it is none of it.
  [[nodiscard]] std::int64_t end_of_answer(std::span<const std::int64_t> tokens, const TokenRange& range) const;

  ChatRenderer renderer_;
  mutable std::mutex mutex_;  // guards other_keys_
  mutable std::set<std::string> other_keys_;
  mutable std::atomic<bool> lacks_tools_ = false, has_tools_ = false;  // of some conversation with a column of tools
};

}  // namespace d9d
