// Sizes of dense decoders: the families Qwen3, Llama 3 and others share this record, and differ in the layer that they
// build from it.
//
// Example
//   {"layer": {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
//              "rms_norm_eps": 1e-6, "head_dim": 128},
//    "num_hidden_layers": 28, "rope_base": 1000000, "max_position_ids": 40960,
//    "split_vocab_size": {"regular": 151643, "special": 293}, "split_vocab_order": ["regular", "special"]}
#pragma once

#include <cstdint>
#include <optional>

#include "d9d/base/record.h"
#include "d9d/kernels/attention/sdpa_config.h"
#include "d9d/models/decoder/decoder_parameters.h"

namespace d9d {

struct DenseLayerParameters {
  std::int64_t hidden_size = 1;                 // width of the residual stream
  std::int64_t intermediate_size = 1;           // inner width of the feed-forward
  std::int64_t num_attention_heads = 1;         // a multiple of num_key_value_heads
  std::int64_t num_key_value_heads = 1;         // heads of keys and values
  double rms_norm_eps = 1e-6;                   // added to the mean square in norms
  std::int64_t head_dim = 2;                    // even
  std::optional<SdpaConfig> sdpa_backend = {};  // null: the best that fits the device

  void validate(const ConfigPath& path) const;

  static constexpr auto fields() {
    using Layer = DenseLayerParameters;
    return record<Layer>(required("hidden_size", &Layer::hidden_size, at_least(1)),
                         required("intermediate_size", &Layer::intermediate_size, at_least(1)),
                         required("num_attention_heads", &Layer::num_attention_heads, at_least(1)),
                         required("num_key_value_heads", &Layer::num_key_value_heads, at_least(1)),
                         required("rms_norm_eps", &Layer::rms_norm_eps, greater_than(0)),
                         required("head_dim", &Layer::head_dim, at_least(2)),
                         defaulted("sdpa_backend", &Layer::sdpa_backend));
  }
};

using DenseParameters = DecoderParameters<DenseLayerParameters>;

extern template const ValueType& json_type<DenseParameters>();

}  // namespace d9d
