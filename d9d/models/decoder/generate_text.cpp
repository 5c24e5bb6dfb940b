#include "d9d/models/decoder/generate_text.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/tokenizer/decode_stream.h"

namespace d9d {

std::string generate_text(TokenModel& model, const Tokenizer& tokenizer, std::span<const std::uint32_t> prompt,
                          GenerateOptions options, const std::function<void(std::string_view text)>& on_text) {
  const std::int64_t vocabulary_size = model.parts().front()->model->vocabulary().total();
  D9D_CHECK(tokenizer.highest_id() < vocabulary_size, ConfigError,
            "[models::generate_text] expected a tokenizer of ids below the model's vocabulary of ", vocabulary_size,
            ", got one of ids up to ", tokenizer.highest_id(), ". Take the tokenizer that belongs to the model.");
  DecodeStream decoded(tokenizer);
  std::string text;
  const auto add = [&](const std::string& piece) {
    text += piece;
    if (on_text && !piece.empty()) on_text(piece);
  };
  options.on_token = [&, others = std::move(options.on_token)](std::int64_t id, std::int64_t sequence) {
    if (others) others(id, sequence);
    add(decoded.step(static_cast<std::uint32_t>(id)));
  };
  (void)generate(model, {prompt.begin(), prompt.end()}, options);
  add(decoded.finish());
  return text;
}

std::string generate_text(const ModulePtr<DecoderForCausalLM>& model, const Tokenizer& tokenizer,
                          std::span<const std::uint32_t> prompt, GenerateOptions options,
                          const std::function<void(std::string_view text)>& on_text) {
  return generate_text(*one_piece_decoder(model), tokenizer, prompt, std::move(options), on_text);
}

}  // namespace d9d
