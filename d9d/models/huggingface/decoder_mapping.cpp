#include "d9d/models/huggingface/decoder_mapping.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace d9d {
namespace {

constexpr const char* kHuggingFaceBackbone = "model.";
constexpr const char* kEmbedding = "embed_tokens.weight";
constexpr const char* kSplitEmbedding = "embed_tokens.token_embedding.";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kSplitHead = "lm_head.";
constexpr const char* kScore = "score.weight";

// `matrix` [rows of all splits, hidden] -> `<prefix><split>.weight` each.
StateMapper split_rows(const std::string& matrix, const std::string& prefix, const DecoderSizes& sizes) {
  std::vector<std::pair<std::string, std::int64_t>> splits;
  for (const auto& [split, rows] : sizes.vocabulary) splits.emplace_back(prefix + split + ".weight", rows);
  return mapper::split(matrix, splits, 0);
}

// The reverse of split_rows.
StateMapper join_rows(const std::string& prefix, const std::string& matrix, const DecoderSizes& sizes) {
  std::vector<std::string> splits;
  for (const auto& [split, rows] : sizes.vocabulary) splits.push_back(prefix + split + ".weight");
  return mapper::concatenate(splits, matrix, 0);
}

// All layers and the final norm.
StateMapper map_layers(const DecoderStateLayout& layout) {
  std::vector<StateMapper> mappers = {mapper::identity("norm.weight")};
  for (std::int64_t layer = 0; layer < layout.sizes.num_hidden_layers; ++layer) {
    const std::string prefix = cat("layers.", layer, ".");
    mappers.push_back(mapper::with_prefix(layout.map_layer(layer), prefix, prefix));
  }
  return mapper::parallel(std::move(mappers));
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

StateMapper add_head_from_huggingface(const StateMapper& decoder, const HeadConfig& head, const DecoderSizes& sizes,
                                      const std::string& backbone_prefix, const DecoderNames& names) {
  if (std::holds_alternative<EmbeddingHeadConfig>(head)) return decoder;
  if (std::holds_alternative<ClassificationHeadConfig>(head)) {
    return mapper::parallel({decoder, mapper::rename(kScore, names.head + kScore)});
  }
  const StateMapper both = mapper::parallel({decoder, split_rows(kHead, names.head + kSplitHead, sizes)});
  if (!sizes.tie_word_embeddings) return both;
  const std::string matrix = backbone_prefix + kEmbedding;
  return mapper::sequential({mapper::copy(matrix, {matrix, kHead}), both});
}

StateMapper head_to_huggingface(const HeadConfig& head, const DecoderSizes& sizes, const DecoderNames& names) {
  if (std::holds_alternative<ClassificationHeadConfig>(head)) return mapper::rename(names.head + kScore, kScore);
  if (const auto* embedding = std::get_if<EmbeddingHeadConfig>(&head)) {
    D9D_CHECK(!embedding->embedding_dim, ConfigError,
              "[models::huggingface] expected an embedding head without projection, because the Hugging Face model has "
              "none, got embedding_dim = ",
              embedding->embedding_dim.value_or(0), ". Export in our own format, or set embedding_dim to null.");
    return mapper::parallel({});
  }
  if (sizes.tie_word_embeddings) return mapper::parallel({});
  return join_rows(names.head + kSplitHead, kHead, sizes);
}

StateMapper decoder_from_huggingface(const DecoderStateLayout& layout,
                                     const std::vector<std::string>& checkpoint_names) {
  const std::string prefix = huggingface_backbone_prefix(checkpoint_names);
  const StateMapper backbone =
      mapper::with_prefix(mapper::parallel({split_rows(kEmbedding, kSplitEmbedding, layout.sizes), map_layers(layout)}),
                          prefix, layout.names.backbone);
  if (!layout.head) return backbone;
  return add_head_from_huggingface(backbone, *layout.head, layout.sizes, prefix, layout.names);
}

StateMapper decoder_to_huggingface(const DecoderStateLayout& layout) {
  const StateMapper backbone =
      mapper::with_prefix(mapper::parallel({join_rows(kSplitEmbedding, kEmbedding, layout.sizes), map_layers(layout)}),
                          layout.names.backbone, written_backbone_prefix(layout.head));
  if (!layout.head) return backbone;
  return mapper::parallel({backbone, head_to_huggingface(*layout.head, layout.sizes, layout.names)});
}

}  // namespace d9d
