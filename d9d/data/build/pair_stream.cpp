#include "d9d/data/build/pair_stream.h"

#include <optional>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/data/build/build_documents.h"
#include "d9d/data/sequences/pair_dataset.h"

namespace d9d {

namespace {

struct PairSource {
  SourceConfig source;
  SequenceConfig sequence;
};

// None of data that are no pairs.
template <class Data>
std::optional<PairSource> pair_source(const Data& data) {
  if constexpr (requires { data.source.columns; }) {
    if (data.source.columns.pairs) return PairSource{.source = data.source, .sequence = data.source.sequence};
  }
  return std::nullopt;
}

LongPairs long_pairs(const SequenceConfig& sequence) {
  const auto* const view = std::get_if<DocumentsViewConfig>(&sequence.view);
  D9D_CHECK(
      view != nullptr && view->sort_buffer_size == 0, ConfigError,
      "[data::build_pair_stream] expected the view \"documents\" without sort_buffer_size for pairs, which are not "
      "packed or sorted in this version, got another. Set \"view\" to {\"kind\": \"documents\"}.");
  const LongDocuments rule = view->long_documents;
  D9D_CHECK(
      rule == LongDocuments::kRefuse || rule == LongDocuments::kSkip, ConfigError,
      "[data::build_pair_stream] expected long_documents \"refuse\" or \"skip\" for pairs, of which a part prefers "
      "nothing, got \"",
      enum_name(rule), "\".");
  return rule == LongDocuments::kSkip ? LongPairs::kSkip : LongPairs::kRefuse;
}

}  // namespace

std::unique_ptr<PackStream<TokenBatch>> build_pair_stream(const DataConfig& config, TokenStreamOptions options) {
  const auto pairs = std::visit([](const auto& data) { return pair_source(data); }, config);
  D9D_CHECK(pairs, ConfigError,
            "[data::build_pair_stream] expected data of kind jsonl, parquet or arrow with the key \"pairs\", got other "
            "data. Say which columns are the chosen and the rejected answer.");
  const SequenceConfig& sequence = pairs->sequence;
  const LongPairs too_long = long_pairs(sequence);
  D9D_CHECK(!options.max_positions || sequence.sequence_length <= *options.max_positions, ConfigError,
            "[data::build_pair_stream] expected sequence_length <= the model's max_position_ids = ",
            *options.max_positions, ", got sequence_length = ", sequence.sequence_length, ". Change one of the two.");
  auto documents = build_documents(pairs->source, {.vocabulary_size = options.vocabulary_size,
                                                   .shows_progress = options.shows_progress,
                                                   .log = options.stream.log,
                                                   .shared_log = options.stream.shared_log});
  const DocumentsIdentity identity = documents->identity();
  if (!identity.tokens.empty()) options.stream.dataset_identity = nlohmann::json::array({to_json(identity)});
  auto dataset = std::make_shared<const PairDataset>(std::move(documents), sequence.sequence_length, too_long);
  const auto collate = [multiple = options.mesh.position_divisor()](std::span<const PairSample> samples) {
    return collate_pairs(samples, multiple);
  };
  return make_pack_stream<TokenBatch>(std::move(dataset), collate, loader_config(config), options.stream);
}

}  // namespace d9d
