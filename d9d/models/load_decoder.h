// Loads a causal language model of any family from a folder of Hugging Face, on one device: for generating, and for
// tools. A job loads its model by source_checkpoint.
//
// Example
//   const ModulePtr<DecoderForCausalLM> model = load_decoder("Qwen3-0.6B", at::kBFloat16, at::kCUDA);
//   generate_text(model, Tokenizer::from_file("Qwen3-0.6B/tokenizer.json"), prompt, {.num_tokens = 100}, print);
#pragma once

#include <filesystem>

#include <ATen/core/Tensor.h>

#include "d9d/models/decoder/decoder_with_head.h"

namespace d9d {

// Local. Reads config.json and the weights, which are converted to `dtype`. Throws ConfigError that names the key for a
// model that this library does not have, and the errors of load_model_state().
[[nodiscard]] ModulePtr<DecoderForCausalLM> load_decoder(const std::filesystem::path& folder, at::ScalarType dtype,
                                                         at::Device device);

}  // namespace d9d
