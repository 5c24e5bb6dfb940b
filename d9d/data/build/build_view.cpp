#include "d9d/data/build/build_view.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/data/sequences/buffer_sorted_dataset.h"
#include "d9d/data/sequences/document_dataset.h"
#include "d9d/data/sequences/packed_dataset.h"
#include "d9d/data/sequences/token_dataset.h"

namespace d9d {

namespace {

using Documents = std::shared_ptr<const TokenDocuments>;

FilteredDocuments filtered(Documents documents, const DocumentRules& rules, const Logger& log) {
  const std::int64_t num_documents = documents->size();
  const std::string described = documents->name();
  FilteredDocuments result(std::move(documents), rules);
  D9D_CHECK(result.size() > 0, ConfigError, "[data::build_view] expected a document of 2 to ", rules.max_positions + 1,
            " tokens, got none among the ", num_documents, " of ", described,
            ". Check the files, or the length of sequences.");
  const auto& [too_short, too_long, without_targets] = result.counts();
  D9D_CHECK(without_targets < result.size(), ConfigError,
            "[data::build_view] expected a sample in which something is predicted, got none: the answers of all ",
            result.size(), " samples of ", described, " are empty or cut off behind position ", rules.max_positions,
            ". Lengthen the sequences (sequence_length), or set long_documents to \"split\".");
  if (without_targets > 0) {
    log.warning("data: in ", without_targets, " of ", result.size(),
                " samples nothing is predicted: they are prompts whose answers are cut off or empty.");
  }
  if (too_short > 0 && rules.too_short == ShortDocuments::kSkip) {
    log.info("data: left out ", too_short, " of ", num_documents, " documents, which have less than two tokens");
  }
  if (too_long > 0) {
    log.info("data: ", too_long, " of ", num_documents, " documents have more than ", rules.max_positions,
             " positions: ", enum_name(rules.too_long));
  }
  return result;
}

TokenView view_of(const ConcatenatedViewConfig&, Documents documents, std::int64_t length, const ViewOptions& options) {
  return {.dataset = std::make_shared<const TokenDataset>(ConcatenatedTokens(std::move(documents), options.separator),
                                                          length)};
}

TokenView view_of(const DocumentsViewConfig& config, Documents documents, std::int64_t length,
                  const ViewOptions& options) {
  auto dataset = std::make_shared<const DocumentDataset>(
      filtered(std::move(documents), {.max_positions = length, .too_long = config.long_documents}, options.log));
  if (config.sort_buffer_size == 0) return {.dataset = std::move(dataset)};
  const BufferSortedOrder::Options order{.buffer_size = config.sort_buffer_size,
                                         .batch_size = options.global_batch_size,
                                         .seed = options.seed,
                                         .shuffle = options.shuffle};
  return {.dataset = std::make_shared<const BufferSortedDataset<DocumentDataset>>(std::move(dataset), order),
          .order = cat("sorted by lengths of at most ", length, " (", enum_name(config.long_documents),
                       ") in buffers of ", order.buffer_size, ", packs of ", order.batch_size, ", seed ", order.seed,
                       order.shuffle ? ", shuffled" : ""),
          .shuffles_itself = true};
}

TokenView view_of(const PackedViewConfig& config, Documents documents, std::int64_t length,
                  const ViewOptions& options) {
  const PackingOptions packing{.buffer_size = config.buffer_size, .seed = options.seed, .shuffle = options.shuffle};
  return {.dataset = std::make_shared<const PackedDataset>(
              filtered(std::move(documents), {.max_positions = length, .too_long = config.long_documents}, options.log),
              packing),
          .order = cat("packed to ", length, " (", enum_name(config.long_documents), ") in buffers of ",
                       packing.buffer_size, packing.shuffle ? cat(", seed ", packing.seed) : ""),
          .shuffles_itself = true,
          .is_packed = true};
}

TokenView view_of(const StreamedViewConfig&, const Documents&, std::int64_t, const ViewOptions&) {
  throw ConfigError(
      "[data::build_view] expected a view of documents that are tokenised before the job begins, got \"streamed\", "
      "which is for a single source of rows. Take it out of the mixture, or choose \"packed\".");
}

}  // namespace

TokenView build_view(Documents documents, const SequenceConfig& config, const ViewOptions& options) {
  return std::visit(
      [&](const auto& view) { return view_of(view, std::move(documents), config.sequence_length, options); },
      config.view);
}

TokenView build_reference_view(Documents documents, const ReferenceViewOptions& options) {
  auto dataset = std::make_shared<const DocumentDataset>(filtered(
      std::move(documents), {.max_positions = options.max_positions, .too_short = ShortDocuments::kKeep}, Logger()));
  const BufferSortedOrder::Options order{.buffer_size = options.presort_buffer_size,
                                         .batch_size = options.global_batch_size,
                                         .seed = options.seed,
                                         .shuffle = options.shuffle,
                                         .order = BufferOrder::kLegacy};
  return {.dataset = std::make_shared<const BufferSortedDataset<DocumentDataset>>(std::move(dataset), order),
          .order = cat("as 0.16 in buffers of ", order.buffer_size, ", packs of ", order.batch_size, ", seed ",
                       order.seed, order.shuffle ? ", shuffled" : ""),
          .shuffles_itself = true};
}

}  // namespace d9d
