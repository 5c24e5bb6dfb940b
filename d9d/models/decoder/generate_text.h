// Generates text with a trained decoder and the tokenizer.json of its vocabulary. As slow as generate().
//
// Example
//   const auto tokenizer = d9d::Tokenizer::from_file("Qwen3-0.6B/tokenizer.json");
//   const auto print = [](std::string_view text) { std::cout << text << std::flush; };
//   generate_text(model, tokenizer, tokenizer.encode("The capital of France is").ids, {.num_tokens = 20}, print);
//
//   const std::vector<d9d::ChatMessage> messages = {{"user", "Hi"}};         // the answer of a chat model
//   const auto chat = d9d::render_chat(d9d::ChatFamily::kQwen3, messages, {.add_generation_prompt = true});
//   generate_text(model, tokenizer, d9d::encode_chat(tokenizer, chat).ids, {.stop_ids = {151645}}, print);
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "d9d/models/decoder/generate.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

// Collective over all ranks of the model, with the same arguments. Returns Tokenizer::decode() of the ids that
// generate() returns; special tokens and ids without a token produce no text. `on_text` gets the text in pieces while
// tokens are generated, on each rank; a piece consists of whole characters. Throws ConfigError if the tokenizer has ids
// beyond the model's vocabulary, and as generate().
std::string generate_text(TokenModel& model, const Tokenizer& tokenizer, std::span<const std::uint32_t> prompt,
                          GenerateOptions options, const std::function<void(std::string_view text)>& on_text = {});
// The same for a model that is not split into stages.
std::string generate_text(const ModulePtr<DecoderForCausalLM>& model, const Tokenizer& tokenizer,
                          std::span<const std::uint32_t> prompt, GenerateOptions options,
                          const std::function<void(std::string_view text)>& on_text = {});

}  // namespace d9d
