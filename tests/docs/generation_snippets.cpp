// Code that docs/generation.md shows, as snippets.cpp.
#include <iostream>

#include "d9d/models/decoder/generate.h"
#include "d9d/models/load_decoder.h"

namespace pages {

void generate(const std::vector<std::vector<std::int64_t>>& prompts) {
  const auto model = d9d::load_decoder("Qwen3-0.6B", at::kBFloat16, at::kCUDA);  // or the model that is trained
  const std::vector<d9d::GeneratedSequence> answers =
      d9d::generate_batch(model, prompts, {.num_tokens = 256, .temperature = 1.0, .top_p = 0.95, .stop_ids = {151645}});
  for (const d9d::GeneratedSequence& answer : answers) {
    std::cout << answer.ids.size() << " tokens, the first with log-probability " << answer.log_probs.front() << '\n';
  }
}

}  // namespace pages
