#include "d9d/data/build_view.h"

#include <utility>

#include "d9d/base/check.h"
#include "d9d/data/view/buffer_sorted_dataset.h"
#include "d9d/data/view/document_dataset.h"
#include "d9d/data/view/packed_dataset.h"
#include "d9d/data/view/token_dataset.h"

namespace d9d {

namespace {

using Documents = std::shared_ptr<const TokenDocuments>;

UsableDocuments usable(Documents documents, std::int64_t max_positions, LongDocuments too_long, const Logger& log) {
  const std::int64_t num_documents = documents->size();
  UsableDocuments result(std::move(documents), {.max_positions = max_positions, .too_long = too_long});
  const auto& [too_short, long_ones] = result.counts();
  if (too_short > 0)
    log.info("data: left out ", too_short, " of ", num_documents, " documents with less than two tokens");
  if (long_ones > 0) {
    log.info("data: ", long_ones, " of ", num_documents, " documents have more than ", max_positions,
             " positions: ", enum_name(too_long));
  }
  return result;
}

TokenView view_of(const ConcatenatedViewConfig&, Documents documents, std::int64_t length, const ViewOptions& options) {
  return {.dataset = std::make_shared<const TokenDataset>(TokenRow(std::move(documents), options.separator), length)};
}

TokenView view_of(const DocumentsViewConfig& config, Documents documents, std::int64_t length,
                  const ViewOptions& options) {
  auto dataset =
      std::make_shared<const DocumentDataset>(usable(std::move(documents), length, config.long_documents, options.log));
  if (config.sort_buffer_size == 0) return {.dataset = std::move(dataset)};
  const BufferSortedOrder::Options order{.buffer_size = config.sort_buffer_size,
                                         .pack_size = options.global_batch_size,
                                         .seed = options.seed,
                                         .shuffle = options.shuffle};
  return {.dataset = std::make_shared<const BufferSortedDataset<DocumentDataset>>(std::move(dataset), order),
          .order = cat("sorted in buffers of ", order.buffer_size, ", packs of ", order.pack_size, ", seed ",
                       order.seed, order.shuffle ? ", shuffled" : ""),
          .shuffles_itself = true};
}

TokenView view_of(const PackedViewConfig& config, Documents documents, std::int64_t length,
                  const ViewOptions& options) {
  const PackingOptions packing{.buffer_size = config.buffer_size, .seed = options.seed, .shuffle = options.shuffle};
  return {.dataset = std::make_shared<const PackedDataset>(
              usable(std::move(documents), length, config.long_documents, options.log), packing),
          .order = cat("packed to ", length, " in buffers of ", packing.buffer_size,
                       packing.shuffle ? cat(", seed ", packing.seed) : ""),
          .is_packed = true};
}

// Every label counts where sequences are cut from documents, so prompts would be learned.
void refuse_prompts(const TokenDocuments& documents) {
  if (documents.size() == 0) return;
  const auto targets = documents.targets(0);
  const bool is_whole = targets.size() == 1 && targets.front().begin == 0 && targets.front().end == documents.length(0);
  D9D_CHECK(is_whole, ConfigError,
            "[data::build_view] expected the view \"documents\" or \"packed\" for a source with prompt_column, got "
            "\"concatenated\". Set the view.");
}

}  // namespace

TokenView build_view(Documents documents, const SequenceConfig& config, const ViewOptions& options) {
  if (std::holds_alternative<ConcatenatedViewConfig>(config.view)) refuse_prompts(*documents);
  return std::visit(
      [&](const auto& view) { return view_of(view, std::move(documents), config.sequence_length, options); },
      config.view);
}

TokenView build_reference_view(Documents documents, const ReferenceViewOptions& options) {
  auto dataset = std::make_shared<const DocumentDataset>(UsableDocuments(
      std::move(documents), {.max_positions = options.max_positions, .too_short = ShortDocuments::kKeep}));
  const BufferSortedOrder::Options order{.buffer_size = options.presort_buffer_size,
                                         .pack_size = options.global_batch_size,
                                         .seed = options.seed,
                                         .shuffle = options.shuffle,
                                         .order = BufferOrder::kLegacy};
  return {.dataset = std::make_shared<const BufferSortedDataset<DocumentDataset>>(std::move(dataset), order),
          .order = cat("as 0.16 in buffers of ", order.buffer_size, ", packs of ", order.pack_size, ", seed ",
                       order.seed, order.shuffle ? ", shuffled" : ""),
          .shuffles_itself = true};
}

}  // namespace d9d
