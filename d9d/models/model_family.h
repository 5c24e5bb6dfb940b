// A family of decoders as a value, for code that is written once for all of them: programs, tools and tests. families.h
// lists the families of this library; a program may define one of its own in the same way.
//
// Example
//   CausalLMProvider model(kQwen3Dense, config.model_provider, sizes);
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "d9d/base/dtype.h"
#include "d9d/blocks/head/head_config.h"
#include "d9d/model_state/mapper/state_mapper.h"
#include "d9d/models/decoder/pre_norm_decoder.h"
#include "d9d/models/huggingface/decoder_mapping.h"

namespace d9d {

// P: the record of a model's sizes, DecoderParameters of the family's layer.
template <class P>
struct ModelFamily {
  using Parameters = P;

  const char* name;          // of its folder in d9d/models
  const char* model_type;    // in config.json
  bool has_experts = false;  // layers use SequenceShared::real_positions

  // A stage on the meta device.
  ModulePtr<PreNormDecoder> (*build)(const P& parameters, const DecoderStageOptions& options);

  // Sizes in a config.json, with the vocabulary as one split "regular". Throws ConfigError that names the key for
  // another model_type and for what this library does not support.
  P (*parameters_from_huggingface)(const nlohmann::json& config);
  // A config.json for transformers. Without a head, or with an embedding head, it describes the bare backbone.
  nlohmann::json (*huggingface_config)(const P& parameters, const std::optional<HeadConfig>& head, Dtype dtype);
  // From a checkpoint with tensors of the given names. head: null for the backbone alone.
  StateMapper (*from_huggingface)(const P& parameters, const std::optional<HeadConfig>& head,
                                  const std::vector<std::string>& checkpoint_names);
  // experts: ignored by families without experts.
  StateMapper (*to_huggingface)(const P& parameters, const std::optional<HeadConfig>& head, ExpertsFormat experts);
};

// ModelFamily::build of a backbone that is constructed from sizes and options.
template <class Model, class P>
[[nodiscard]] ModulePtr<PreNormDecoder> build_model(const P& parameters, const DecoderStageOptions& options) {
  return make_module<Model>(parameters, options);
}

}  // namespace d9d
