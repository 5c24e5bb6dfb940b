// Maps names of decoders in a Hugging Face checkpoint to this library's, and back. A family maps one layer; embedding,
// final norm and heads are the same in all families.
//
// Example
//   const d9d::DecoderStateLayout layout = {
//       .sizes = d9d::decoder_sizes(parameters), .map_layer = map_layer, .head = d9d::CausalLMHeadConfig{}};
//   const d9d::StateMapper mapper = d9d::decoder_from_huggingface(layout, directory.names());
//
// A checkpoint holds the vocabulary as one matrix, this library holds it in splits: rows are split and concatenated in
// the order of the splits. With tied embeddings the head is read from the embedding and not written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/blocks/head/head_config.h"
#include "d9d/model_state/mapper/state_mapper.h"

namespace d9d {

// The prefixes of a decoder's own names. The defaults are those of DecoderWithHead. A bare backbone has no prefix; each
// of several heads has "heads.<name>.".
struct DecoderNames {
  std::string backbone = "model.";
  std::string head = "head.";
};

// How a checkpoint stores the experts of a layer. This library: {gate,up,down}_proj.weight [experts, in, out].
enum class ExpertsFormat {
  kModuleList,  // experts.<e>.{gate,up,down}_proj.weight [out, in]: published checkpoints, and what transformers saves
  // experts.gate_up_proj [experts, 2 x intermediate, hidden] and experts.down_proj: transformers' format in memory
  kFused,
};

struct DecoderSizes {
  std::int64_t hidden_size;
  std::int64_t num_hidden_layers;
  std::int64_t num_attention_heads;
  std::int64_t num_key_value_heads;
  std::int64_t head_dim;
  std::vector<std::pair<std::string, std::int64_t>> vocabulary;  // splits in order, with their rows
  bool tie_word_embeddings;
};

struct DecoderStateLayout {
  DecoderSizes sizes;
  // Maps the layer with this global index. Names have no prefix: "self_attn.q_proj.weight".
  std::function<StateMapper(std::int64_t index)> map_layer;
  std::optional<HeadConfig> head;  // null: the backbone alone
  DecoderNames names;
};

// The prefix of the backbone's tensors in a checkpoint with the given tensors: "model.", or "" if the checkpoint was
// saved without a head.
[[nodiscard]] std::string huggingface_backbone_prefix(const std::vector<std::string>& checkpoint_names);

// From a checkpoint to this library's state. An embedding head's projection is left out, as checkpoints have no such
// tensor.
[[nodiscard]] StateMapper decoder_from_huggingface(const DecoderStateLayout& layout,
                                                   const std::vector<std::string>& checkpoint_names);

// From this library's state to a checkpoint. Throws ConfigError for an embedding head with a projection.
[[nodiscard]] StateMapper decoder_to_huggingface(const DecoderStateLayout& layout);

// Adds a head to `decoder`, a mapper of the backbone and perhaps of other heads. `backbone_prefix`: the backbone's
// prefix in the checkpoint, from which a tied head reads the embedding.
[[nodiscard]] StateMapper add_head_from_huggingface(const StateMapper& decoder, const HeadConfig& head,
                                                    const DecoderSizes& sizes, const std::string& backbone_prefix,
                                                    const DecoderNames& names);
// The head's part of decoder_to_huggingface(), for a further head beside (mapper::parallel) those with the backbone.
[[nodiscard]] StateMapper head_to_huggingface(const HeadConfig& head, const DecoderSizes& sizes,
                                              const DecoderNames& names);

// The sizes in a parameter record of any family.
template <class Parameters>
[[nodiscard]] DecoderSizes decoder_sizes(const Parameters& parameters) {
  DecoderSizes sizes = {.hidden_size = parameters.layer.hidden_size,
                        .num_hidden_layers = parameters.num_hidden_layers,
                        .num_attention_heads = parameters.layer.num_attention_heads,
                        .num_key_value_heads = parameters.layer.num_key_value_heads,
                        .head_dim = parameters.layer.head_dim,
                        .vocabulary = {},
                        .tie_word_embeddings = parameters.tie_word_embeddings};
  for (const std::string& split : parameters.split_vocab_order) {
    sizes.vocabulary.emplace_back(split, parameters.split_vocab_size.at(split));
  }
  return sizes;
}

}  // namespace d9d
