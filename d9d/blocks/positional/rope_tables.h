// Rotary frequencies and the cos and sin tables computed from them. They equal those of Hugging Face transformers bit
// for bit: computed in float32, whatever the model's dtype, and converted at the end.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "d9d/blocks/positional/rope_scaling_config.h"
#include "d9d/kernels/rotary/rotary.h"

namespace d9d {

struct RopeFrequencies {
  at::Tensor inverse;            // [D / 2] float32
  double attention_scale = 1.0;  // of both tables (YaRN, LongRoPE)
};

struct RopeFrequenciesRequest {
  std::int64_t base = 10000;
  std::int64_t head_dim = 0;  // D, even
  std::int64_t max_position_ids = 0;
  std::optional<RopeScalingConfig> scaling;
};

// Sources: Su et al., arXiv:2104.09864 (none); Chen et al., arXiv:2306.15595 (linear); base * factor^(D / (D - 2))
// (ntk); Peng et al., arXiv:2309.00071 (yarn); the Llama 3.1 release (llama3); Ding et al., arXiv:2402.13753 (longrope:
// the long factors when max_position_ids exceeds the original context, the short ones otherwise). Throws ConfigError
// for an odd head_dim, or for factor lists of a length other than D / 2.
[[nodiscard]] RopeFrequencies rope_frequencies(const RopeFrequenciesRequest& request);

enum class RopeTable : std::uint8_t { kCos, kSin };

// Cosines or sines of the angles position * frequency, [max_position_ids, D], computed in float32 and converted to
// dtype at the end. half: row p = [angles, angles]; interleaved: each angle occurs twice in succession.
[[nodiscard]] at::Tensor rope_table(RopeTable table, const RopeFrequencies& frequencies, std::int64_t max_position_ids,
                                    kernels::RotaryStyle style, at::ScalarType dtype = at::kFloat);

}  // namespace d9d
