#include "d9d/models/huggingface/decoder_mapping.h"

#include <algorithm>
#include <iterator>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

using Mappings = std::vector<TensorMapping>;

constexpr const char* kHuggingFaceBackbone = "model.";
constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kSplitEmbedding = "embed_tokens.token_embedding.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kSplitHead = "lm_head.";
constexpr const char* kScore = "score.weight";

void append(Mappings& mappings, Mappings more) { std::ranges::move(more, std::back_inserter(mappings)); }

TensorMapping same(const std::string& name, std::vector<std::int64_t> shape) {
  return rename_tensor(name, name, std::move(shape));
}

// `matrix` [rows of all splits, hidden] -> `<prefix><split>.weight` each.
Mappings split_rows(const std::string& matrix, const std::string& prefix, const DecoderSizes& sizes) {
  std::int64_t num_rows = 0;
  for (const auto& [split, rows] : sizes.vocabulary) num_rows += rows;
  Mappings mappings;
  std::int64_t begin = 0;
  for (const auto& [split, rows] : sizes.vocabulary) {
    mappings.push_back({.inputs = {{matrix, {num_rows, sizes.hidden_size}}},
                        .output = {prefix + split + ".weight", {rows, sizes.hidden_size}},
                        .apply = [begin, length = rows](std::span<const at::Tensor> inputs) {
                          return inputs[0].narrow(0, begin, length);
                        }});
    begin += rows;
  }
  return mappings;
}

// The reverse of split_rows.
TensorMapping join_rows(const std::string& prefix, const std::string& matrix, const DecoderSizes& sizes) {
  TensorMapping mapping = {
      .inputs = {}, .output = {matrix, {0, sizes.hidden_size}}, .apply = [](std::span<const at::Tensor> inputs) {
        return inputs.size() == 1 ? inputs[0] : at::cat(at::TensorList(inputs.data(), inputs.size()));
      }};
  for (const auto& [split, rows] : sizes.vocabulary) {
    mapping.inputs.push_back({prefix + split + ".weight", {rows, sizes.hidden_size}});
    mapping.output.shape[0] += rows;
  }
  return mapping;
}

// Attention, norms and MLP of all layers and the final norm. Except for the MLP, names are the same on both sides.
Mappings map_layers(const DecoderStateLayout& layout) {
  const DecoderSizes& sizes = layout.sizes;
  const std::int64_t hidden = sizes.hidden_size, head_dim = sizes.head_dim;
  const std::int64_t queries = sizes.num_attention_heads * head_dim, keys = sizes.num_key_value_heads * head_dim;
  Mappings mappings;
  for (std::int64_t layer = 0; layer < sizes.num_hidden_layers; ++layer) {
    const std::string prefix = cat("layers.", layer, ".");
    append(
        mappings,
        {same(prefix + "input_layernorm.weight", {hidden}), same(prefix + "self_attn.q_proj.weight", {queries, hidden}),
         same(prefix + "self_attn.k_proj.weight", {keys, hidden}),
         same(prefix + "self_attn.v_proj.weight", {keys, hidden}),
         same(prefix + "self_attn.o_proj.weight", {hidden, queries}),
         same(prefix + "self_attn.q_norm.weight", {head_dim}), same(prefix + "self_attn.k_norm.weight", {head_dim}),
         same(prefix + "post_attention_layernorm.weight", {hidden})});
    append(mappings, layout.map_mlp(prefix + "mlp."));
  }
  mappings.push_back(same("norm.weight", {hidden}));
  return mappings;
}

void add_prefixes(Mappings& mappings, const std::string& of_inputs, const std::string& of_output) {
  for (TensorMapping& mapping : mappings) {
    for (NamedShape& input : mapping.inputs) input.name = of_inputs + input.name;
    mapping.output.name = of_output + mapping.output.name;
  }
}

// The prefix in exported checkpoints, where a model with an embedding head is a bare backbone.
std::string written_backbone_prefix(const std::optional<HeadConfig>& head) {
  return head && !std::holds_alternative<EmbeddingHeadConfig>(*head) ? kHuggingFaceBackbone : "";
}

}  // namespace

std::string huggingface_backbone_prefix(const std::vector<std::string>& checkpoint_names) {
  const bool has_prefix = std::ranges::any_of(
      checkpoint_names, [](const std::string& name) { return name.starts_with(kHuggingFaceBackbone); });
  return has_prefix ? kHuggingFaceBackbone : "";
}

std::vector<TensorMapping> head_from_huggingface(const HeadConfig& head, const DecoderSizes& sizes,
                                                 const std::string& backbone_prefix, const DecoderNames& names) {
  if (const auto* classification = std::get_if<ClassificationHeadConfig>(&head)) {
    return {rename_tensor(kScore, names.head + kScore, {classification->num_labels, sizes.hidden_size})};
  }
  if (std::holds_alternative<EmbeddingHeadConfig>(head)) return {};
  const std::string matrix = sizes.tie_word_embeddings ? backbone_prefix + kEmbedding : kHead;
  return split_rows(matrix, names.head + kSplitHead, sizes);
}

std::vector<TensorMapping> head_to_huggingface(const HeadConfig& head, const DecoderSizes& sizes,
                                               const DecoderNames& names) {
  if (const auto* classification = std::get_if<ClassificationHeadConfig>(&head)) {
    return {rename_tensor(names.head + kScore, kScore, {classification->num_labels, sizes.hidden_size})};
  }
  if (const auto* embedding = std::get_if<EmbeddingHeadConfig>(&head)) {
    D9D_CHECK(!embedding->embedding_dim, ConfigError,
              "[models::huggingface] expected an embedding head without projection, because the Hugging Face model has "
              "none, got embedding_dim = ",
              embedding->embedding_dim.value_or(0), ". Export in our own format, or set embedding_dim to null.");
    return {};
  }
  if (sizes.tie_word_embeddings) return {};
  return {join_rows(names.head + kSplitHead, kHead, sizes)};
}

std::vector<TensorMapping> decoder_from_huggingface(const DecoderStateLayout& layout,
                                                    const std::vector<std::string>& checkpoint_names) {
  const std::string prefix = huggingface_backbone_prefix(checkpoint_names);
  Mappings mappings = split_rows(kEmbedding, kSplitEmbedding, layout.sizes);
  append(mappings, map_layers(layout));
  add_prefixes(mappings, prefix, layout.names.backbone);
  if (layout.head) append(mappings, head_from_huggingface(*layout.head, layout.sizes, prefix, layout.names));
  return mappings;
}

std::vector<TensorMapping> decoder_to_huggingface(const DecoderStateLayout& layout) {
  Mappings mappings = {join_rows(kSplitEmbedding, kEmbedding, layout.sizes)};
  append(mappings, map_layers(layout));
  add_prefixes(mappings, layout.names.backbone, written_backbone_prefix(layout.head));
  if (layout.head) append(mappings, head_to_huggingface(*layout.head, layout.sizes, layout.names));
  return mappings;
}

}  // namespace d9d
