// Encodes conversations as documents: a row's column is a JSON list of messages, a chat template renders it as text,
// and what the assistant says is the target.
//
// Example
//   const ChatEncoder encoder("Qwen3-0.6B/tokenizer.json", ChatFamily::kQwen3);
//   const std::string_view row = R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}])";
//   const EncodedRow chat = encoder.encode_row({&row, 1}, /*end=*/{});    // targets: the tokens of Hello!<|im_end|>
#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "d9d/data/text/tokenizer_encoder.h"
#include "d9d/tokenizer/chat/chat_template.h"

namespace d9d {

class ChatEncoder final : public TokenizerEncoder {
 public:
  // Throws the errors of TokenizerEncoder, and ConfigError if the tokenizer lacks one of the template's
  // special_tokens().
  ChatEncoder(const std::filesystem::path& tokenizer, ChatFamily family);

  // Expects one column. Reports as problems text that is not JSON, messages that read_chat_messages() rejects, and a
  // conversation in which the assistant says nothing. The token `end` is not a target.
  [[nodiscard]] EncodedRow encode_row(std::span<const std::string_view> columns,
                                      std::optional<std::int64_t> end) const override;
  // Returns a line that names the message keys that the template does not read; empty if there are none.
  [[nodiscard]] std::string remark() const override;
  [[nodiscard]] std::string fingerprint() const override;

 private:
  ChatFamily family_;
  mutable std::mutex mutex_;  // guards other_keys_
  mutable std::set<std::string> other_keys_;
};

}  // namespace d9d
