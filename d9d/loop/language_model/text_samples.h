// Lets a trained model continue prompts. Prompts are tokenised like the data that the model was trained on.
//
// Example
//   {"prompts": ["The capital of France is"], "num_tokens": 40, "temperature": 0.7, "stop_at": ["<|endoftext|>"]}
//
//   const TextSamples samples(config.sample, config.data, {.vocabulary_size = 151936, .max_positions = 40960});
//   ...                                                                   // training
//   samples.write(context, *staged_decoder(context, trainer.placement(), trainer.stages()), std::cout);
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/base/record.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/data/build/config.h"
#include "d9d/loop/language_model/auto_data_provider.h"
#include "d9d/models/decoder/token_model.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

struct TextSamplesConfig {
  std::vector<std::string> prompts = {};                // if the data is conversations: user messages
  std::optional<std::filesystem::path> tokenizer = {};  // a tokenizer.json; null: the tokenizer of the data, or bytes
  // Texts of tokens that end a sample, in addition to the data's end_of_document and the end of the assistant's
  // message.
  std::vector<std::string> stop_at = {};
  std::int64_t num_tokens = 200;  // most tokens of a sample
  double temperature = 0.7;       // 0: always the likeliest token
  std::int64_t top_k = 0;         // draws from the k likeliest tokens; 0: from all
  double top_p = 1.0;             // draws from the likeliest tokens of together this probability

  static constexpr auto fields() {
    using Samples = TextSamplesConfig;
    return record<Samples>(
        required("prompts", &Samples::prompts), defaulted("tokenizer", &Samples::tokenizer),
        defaulted("stop_at", &Samples::stop_at), defaulted("num_tokens", &Samples::num_tokens, at_least(1)),
        defaulted("temperature", &Samples::temperature, at_least(0)), defaulted("top_k", &Samples::top_k, at_least(0)),
        defaulted("top_p", &Samples::top_p, greater_than(0)));
  }
};

class TextSamples {
 public:
  // Reads the tokenizer, if one is configured; without it tokens are bytes. Throws ConfigError if the tokenizer
  // cannot be read, if the model's vocabulary is smaller than that of the tokenizer or of bytes, if the data are
  // token ids and no tokenizer is configured, if a prompt has no tokens, or if an entry of stop_at is no token.
  TextSamples(const TextSamplesConfig& config, const DataConfig& data, const TokenLimits& limits);

  // Collective over all ranks of the model. The main process writes each prompt and its continuation. With a tokenizer,
  // text is written while it is generated; without one, a continuation is written when it is complete.
  void write(const DistContext& context, TokenModel& model, std::ostream& out) const;

 private:
  [[nodiscard]] std::int64_t id_of(std::string_view token) const;

  TextSamplesConfig config_;
  std::int64_t max_positions_;
  std::optional<Tokenizer> tokenizer_;  // unset: tokens are bytes
  std::vector<std::vector<std::uint32_t>> prompts_;
  std::vector<std::int64_t> stop_ids_;
  bool is_chat_;
};

}  // namespace d9d
