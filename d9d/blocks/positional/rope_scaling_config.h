// How rotary frequencies are scaled for contexts longer than those of the original training: one of the records below,
// selected in JSON by "type". Keys are those of Hugging Face's rope parameters.
//
// Example
//   {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "d9d/base/record.h"

namespace d9d {

// Position interpolation, Chen et al. 2023.
struct LinearRopeScalingConfig {
  double factor = 1.0;  // divides the positions

  static constexpr Tag kTag = {"type", "linear"};
  static constexpr auto fields() {
    return record<LinearRopeScalingConfig>(required("factor", &LinearRopeScalingConfig::factor, greater_than(0)));
  }
};

// Enlarges the base instead of slowing positions down.
struct NtkRopeScalingConfig {
  double factor = 1.0;  // by how much the context grows

  static constexpr Tag kTag = {"type", "ntk"};
  static constexpr auto fields() {
    return record<NtkRopeScalingConfig>(required("factor", &NtkRopeScalingConfig::factor, greater_than(0)));
  }
};

// Peng et al. 2023, "YaRN".
struct YarnRopeScalingConfig {
  double factor = 1.0;                                // divides low frequencies
  std::int64_t original_max_position_embeddings = 1;  // positions of the original training
  double beta_fast = 32.0;                      // a frequency with more rotations over the original context is kept
  double beta_slow = 1.0;                       // a frequency with fewer rotations is divided by factor
  bool truncate = false;                        // round the two borders outwards to whole dimensions
  std::optional<double> attention_factor = {};  // scale of both tables; null: derived from factor and the two mscales
  std::optional<double> mscale = {};  // with mscale_all_dim: numerator of attention_factor, 1 + 0.1 mscale ln factor
  std::optional<double> mscale_all_dim = {};  // with mscale: its denominator, the same of this

  // Throws ConfigError unless beta_fast > beta_slow.
  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"type", "yarn"};
  static constexpr auto fields() {
    using Yarn = YarnRopeScalingConfig;
    return record<Yarn>(
        required("factor", &Yarn::factor, greater_than(0)),
        required("original_max_position_embeddings", &Yarn::original_max_position_embeddings, at_least(1)),
        defaulted("beta_fast", &Yarn::beta_fast, greater_than(0)),
        defaulted("beta_slow", &Yarn::beta_slow, greater_than(0)), defaulted("truncate", &Yarn::truncate),
        defaulted("attention_factor", &Yarn::attention_factor, greater_than(0)), defaulted("mscale", &Yarn::mscale),
        defaulted("mscale_all_dim", &Yarn::mscale_all_dim));
  }
};

// The frequency bands of Llama 3.1.
struct Llama3RopeScalingConfig {
  double factor = 1.0;            // divides low frequencies
  double low_freq_factor = 1.0;   // a frequency with fewer rotations over the original context is divided
  double high_freq_factor = 4.0;  // a frequency with more rotations is kept
  std::int64_t original_max_position_embeddings = 1;  // positions of the original training

  // Throws ConfigError unless low_freq_factor < high_freq_factor.
  void validate(const ConfigPath& path) const;

  static constexpr Tag kTag = {"type", "llama3"};
  static constexpr auto fields() {
    using Llama3 = Llama3RopeScalingConfig;
    return record<Llama3>(
        required("factor", &Llama3::factor, greater_than(0)),
        required("low_freq_factor", &Llama3::low_freq_factor, greater_than(0)),
        required("high_freq_factor", &Llama3::high_freq_factor, greater_than(0)),
        required("original_max_position_embeddings", &Llama3::original_max_position_embeddings, at_least(1)));
  }
};

// Ding et al. 2024, "LongRoPE": one divisor for each frequency, with separate lists for short and for long contexts.
struct LongRopeScalingConfig {
  std::vector<double> short_factor = {};              // [head_dim / 2]
  std::vector<double> long_factor = {};               // [head_dim / 2]
  std::int64_t original_max_position_embeddings = 1;  // longest context of short_factor
  std::optional<double> factor = {};                  // null: max_position_ids / original_max_position_embeddings
  std::optional<double> attention_factor = {};        // scale of both tables; null: derived from factor

  static constexpr Tag kTag = {"type", "longrope"};
  static constexpr auto fields() {
    using LongRope = LongRopeScalingConfig;
    return record<LongRope>(
        required("short_factor", &LongRope::short_factor, greater_than(0)),
        required("long_factor", &LongRope::long_factor, greater_than(0)),
        required("original_max_position_embeddings", &LongRope::original_max_position_embeddings, at_least(1)),
        defaulted("factor", &LongRope::factor, greater_than(0)),
        defaulted("attention_factor", &LongRope::attention_factor, greater_than(0)));
  }
};

using RopeScalingConfig = std::variant<LinearRopeScalingConfig, NtkRopeScalingConfig, YarnRopeScalingConfig,
                                       Llama3RopeScalingConfig, LongRopeScalingConfig>;

// Throws ConfigError unless the factor lists fit heads of this size.
void check_rope_scaling(const RopeScalingConfig& config, std::int64_t head_dim, const ConfigPath& path);

extern template const ValueType& json_type<RopeScalingConfig>();

}  // namespace d9d
