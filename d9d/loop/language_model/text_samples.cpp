#include "d9d/loop/language_model/text_samples.h"

#include "d9d/base/check.h"
#include "d9d/data/build/text_format.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/models/decoder/choose_tokens.h"
#include "d9d/models/decoder/generate_text.h"
#include "d9d/tokenizer/chat/encode_chat.h"

namespace d9d {

namespace {

// Returns the text format of the data, with the tokenizer of `config` if that names one.
TextFormat format_of(const TextSamplesConfig& config, const DataConfig& data) {
  std::optional<TextFormat> format = text_format(data);
  D9D_CHECK(format || config.tokenizer, ConfigError,
            "[loop::TextSamples] expected sample.tokenizer for data of token ids, or of sources of several tokenizers, "
            "got none. Name the tokenizer.json of the model, or set sample to null.");
  if (!format) format.emplace();
  if (config.tokenizer) format->tokenizer = config.tokenizer;
  return *format;
}

// chat: if prompts are what a user says; it may be null without a tokenizer.
std::vector<std::uint32_t> prompt_ids(const std::string& prompt, const TextFormat& format,
                                      const std::optional<Tokenizer>& tokenizer, const ChatRenderer* chat) {
  if (!tokenizer) {
    std::vector<std::uint32_t> ids;
    for (const char byte : prompt) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  if (chat == nullptr) return tokenizer->encode(prompt, {.add_special_tokens = format.add_special_tokens}).ids;
  const nlohmann::json question = {{{"role", "user"}, {"content", prompt}}};
  const ChatOptions options{.add_generation_prompt = true};
  return encode_chat(*tokenizer, chat->render(question.dump(), /*tools=*/{}, options)).ids;
}

}  // namespace

TextSamples::TextSamples(const TextSamplesConfig& config, const DataConfig& data, const TokenLimits& limits)
    : config_(config), max_positions_(limits.max_positions) {
  const TextFormat format = format_of(config, data);
  is_chat_ = format.chat.has_value();
  if (format.tokenizer) tokenizer_ = Tokenizer::from_file(*format.tokenizer);
  const std::int64_t num_ids =
      tokenizer_ ? std::int64_t{tokenizer_->highest_id()} + 1 : ByteEncoder().vocabulary_size();
  D9D_CHECK(num_ids <= limits.vocabulary_size, ConfigError,
            "[loop::TextSamples] expected a model with a vocabulary of at least ", num_ids, " for ",
            format.tokenizer ? cat("'", format.tokenizer->string(), "'") : "bytes", ", got ", limits.vocabulary_size,
            ". Take the tokenizer that belongs to the model.");
  check_token_choice({.temperature = config.temperature, .top_k = config.top_k, .top_p = config.top_p}, "sample");
  const std::optional<ChatRenderer> chat = format.chat ? std::optional(chat_renderer(*format.chat)) : std::nullopt;
  for (const std::string& prompt : config.prompts) {
    prompts_.push_back(prompt_ids(prompt, format, tokenizer_, chat ? &*chat : nullptr));
    D9D_CHECK(!prompts_.back().empty(), ConfigError,
              "[loop::TextSamples] expected prompts of at least one token in sample.prompts, got '", prompt,
              "'. Write a beginning.");
  }
  for (const std::string& token : config.stop_at) stop_ids_.push_back(id_of(token));
  if (format.end_of_document) stop_ids_.push_back(id_of(*format.end_of_document));
  const std::optional<std::string> end = chat && tokenizer_ ? end_token(*chat, *tokenizer_) : std::nullopt;
  if (end) stop_ids_.push_back(id_of(*end));
}

std::int64_t TextSamples::id_of(std::string_view token) const {
  std::optional<std::int64_t> id;
  if (tokenizer_) {
    id = tokenizer_->token_to_id(token);
  } else {
    id = ByteEncoder().id_of(token);
  }
  D9D_CHECK(id, ConfigError, "[loop::TextSamples] expected tokens at which a sample ends, got '", token,
            "', which is none. Correct sample.stop_at, or name the tokenizer of the data.");
  return *id;
}

void TextSamples::write(const DistContext& context, TokenModel& model, std::ostream& out) const {
  const auto print = [&](std::string_view text) {
    if (context.is_main_process()) out << text << std::flush;
  };
  const GenerateOptions options{.num_tokens = config_.num_tokens,
                                .temperature = config_.temperature,
                                .top_k = config_.top_k,
                                .top_p = config_.top_p,
                                .max_sequence = max_positions_,
                                .stop_ids = stop_ids_,
                                .sequence_ranks = context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}),
                                .ranks = context.mesh(MeshDomain::kFlat)};
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    print("--- a sample ---\n");
    print(config_.prompts[i]);
    if (is_chat_) print("\n");
    if (tokenizer_) {
      (void)generate_text(model, *tokenizer_, prompts_[i], options, print);
    } else {
      print(generate_bytes(model, config_.prompts[i], options));
    }
    print("\n");
  }
}

}  // namespace d9d
