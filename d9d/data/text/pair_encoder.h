// Encodes rows that are a pair of answers to one prompt, a chosen and a rejected one, as documents of three parts:
//
//   tokens    prompt | chosen answer | rejected answer
//   targets            range 0         range 1           the second ends the document
//
// Texts are encoded one by one. Conversations are rendered by a chat template: the prompt with the header of the
// assistant's next message, and each whole conversation, of which the answer is what follows the prompt. The prompt is
// a column, or the messages with which both columns begin.
//
// Example
//   const PairEncoder encoder(std::make_shared<ByteEncoder>(), {.has_prompt = true});
//   const std::string_view row[] = {"4", "5", "2 + 2 = "};                      // chosen, rejected, prompt
//   encoder.encode_row(row, /*end=*/0);                                        // 8 + 2 + 2 tokens
#pragma once

#include <memory>
#include <optional>

#include "d9d/data/text/text_encoder.h"
#include "d9d/tokenizer/chat/chat_renderer.h"

namespace d9d {

// The columns of a row: the chosen answer, the rejected one, then these.
struct PairColumns {
  bool has_prompt = false;                // otherwise conversations begin with it
  bool has_tools = false;                 // of conversations: a list of their JSON schemas
  std::optional<ChatRenderer> chat = {};  // columns are conversations, lists of messages in JSON; none: texts
};

class PairEncoder final : public TextEncoder {
 public:
  // encoder: of texts, or of what the renderer writes.
  PairEncoder(std::shared_ptr<const TextEncoder> encoder, PairColumns columns)
      : encoder_(std::move(encoder)), columns_(std::move(columns)) {}

  // Reports as problems pairs without a prompt, answers that are empty or equal, conversations that the template cannot
  // render, and those of which the rendered prompt is not how both begin. `end` ends each answer: a text that ends with
  // it gets no second one.
  [[nodiscard]] EncodedRow encode_row(std::span<const std::string_view> columns,
                                      std::optional<std::int64_t> end) const override;
  [[nodiscard]] std::string fingerprint() const override;

  void encode(std::string_view text, std::vector<std::int64_t>& ids) const override { encoder_->encode(text, ids); }
  [[nodiscard]] std::span<const std::int64_t> tokens_before() const override { return encoder_->tokens_before(); }
  [[nodiscard]] std::span<const std::int64_t> tokens_behind() const override { return encoder_->tokens_behind(); }
  [[nodiscard]] std::int64_t vocabulary_size() const override { return encoder_->vocabulary_size(); }
  [[nodiscard]] std::optional<std::int64_t> id_of(std::string_view token) const override {
    return encoder_->id_of(token);
  }
  [[nodiscard]] std::string decode(std::span<const std::int64_t> ids) const override { return encoder_->decode(ids); }
  [[nodiscard]] TokenizerIdentity identity() const override { return encoder_->identity(); }
  [[nodiscard]] bool is_special(std::int64_t id) const override { return encoder_->is_special(id); }

 private:
  struct Parts {
    std::vector<std::int64_t> prompt, chosen, rejected;
    std::string problem = {};
  };
  [[nodiscard]] Parts parts_of_texts(std::span<const std::string_view> columns, std::optional<std::int64_t> end) const;
  [[nodiscard]] Parts parts_of_conversations(std::span<const std::string_view> columns) const;

  std::shared_ptr<const TextEncoder> encoder_;
  PairColumns columns_;
};

}  // namespace d9d
