#include "d9d/data/token_stream.h"

#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/data/build_documents.h"
#include "d9d/data/build_view.h"
#include "d9d/data/stream/streamed_packs.h"
#include "d9d/data/view/mixture_dataset.h"
#include "d9d/data/view/shuffled_dataset.h"

namespace d9d {

namespace {

// What is the same for all sources of a job.
struct Job {
  const AutoDataConfig& loader;
  const TokenStreamOptions& options;
};

DocumentOptions document_options(const Job& job) {
  return {.vocabulary_size = job.options.vocabulary_size,
          .shows_progress = job.options.shows_progress,
          .log = job.options.stream.log};
}

const SequenceConfig& sequence_of(const SourceConfig& config) {
  return std::visit([](const auto& source) -> const SequenceConfig& { return source.sequence; }, config);
}

void check_length(const SequenceConfig& sequence, const Job& job) {
  const auto& max_positions = job.options.max_positions;
  D9D_CHECK(!max_positions || sequence.sequence_length <= *max_positions, ConfigError,
            "[data::build_token_stream] expected sequence_length <= the model's max_position_ids = ", *max_positions,
            ", got sequence_length = ", sequence.sequence_length, ". Change one of the two.");
}

// Whether some tokens are read and not predicted.
bool has_targets(const SourceConfig& config) {
  return std::visit(
      [](const auto& source) {
        if constexpr (requires { source.columns; }) {
          return source.columns.prompt_column || source.columns.messages_column;
        } else {
          return false;
        }
      },
      config);
}

TokenView view_of_source(const SourceConfig& config, const Job& job, std::uint64_t seed) {
  check_length(sequence_of(config), job);
  D9D_CHECK(
      !has_targets(config) || !std::holds_alternative<ConcatenatedViewConfig>(sequence_of(config).view), ConfigError,
      "[data::build_token_stream] expected the view \"documents\", \"packed\" or \"streamed\" with prompt_column or "
      "messages_column, got \"concatenated\", in which every label counts. Set the view.");
  return build_view(build_documents(config, document_options(job)), sequence_of(config),
                    {.seed = seed,
                     .shuffle = job.loader.shuffle,
                     .global_batch_size = job.loader.global_batch_size,
                     .separator = document_separator(config),
                     .log = job.options.stream.log});
}

template <class Source>
TokenView view_of(const DataOf<Source>& config, const Job& job) {
  return view_of_source(config.source, job, job.options.stream.seed);
}

std::vector<std::string> paths_of(const SourceConfig& config) {
  return std::visit(
      [](const auto& source) -> std::vector<std::string> {
        if constexpr (requires { source.columns; }) {
          return source.columns.paths;
        } else if constexpr (requires { source.paths; }) {
          return source.paths;
        } else {
          return {source.path.string()};
        }
      },
      config);
}

// Of two sources that read one path: often a mistake, but each may take a column of it.
void warn_of_shared_paths(const MixtureDataConfig& config, const Logger& log) {
  std::map<std::string, std::size_t> source_of_path;
  for (std::size_t i = 0; i < config.sources.size(); ++i) {
    for (const std::string& path : paths_of(config.sources[i].source)) {
      const auto [known, is_new] = source_of_path.emplace(std::filesystem::weakly_canonical(path).string(), i);
      if (is_new || known->second == i) continue;
      log.warning("data: '", path, "' is in sources ", known->second, " and ", i, " of the mixture.");
    }
  }
}

// Each source is shuffled by itself, with a seed of its own.
TokenView view_of(const MixtureDataConfig& config, const Job& job) {
  warn_of_shared_paths(config, job.options.stream.log);
  std::vector<MixtureDataset<TokenSample>::Source> sources;
  std::string order = "mixture of";
  bool is_packed = false;
  for (std::size_t i = 0; i < config.sources.size(); ++i) {
    const std::uint64_t seed = philox_key(job.options.stream.seed, "mixture", std::to_string(i));
    TokenView view = view_of_source(config.sources[i].source, job, seed);
    D9D_CHECK(
        i == 0 || view.is_packed == is_packed, ConfigError,
        "[data::build_token_stream] expected sources of a mixture that are all packed or all not, got both. Change "
        "their views.");
    is_packed = view.is_packed;
    const std::int64_t length = sequence_of(config.sources[i].source).sequence_length;
    const std::int64_t first_length = sequence_of(config.sources.front().source).sequence_length;
    D9D_CHECK(!is_packed || length == first_length, ConfigError,
              "[data::build_token_stream] expected one sequence_length in all packed sources of a mixture, got ",
              first_length, " and, in source ", i, ", ", length, ". Make them equal.");
    const bool shuffles = job.loader.shuffle && !view.shuffles_itself;
    order += cat(" (", config.sources[i].weight, " of ", view.dataset->size(), " ", view.order,
                 shuffles ? cat(", seed ", seed) : "", ")");
    if (shuffles) view.dataset = std::make_shared<const ShuffledDataset<TokenSample>>(std::move(view.dataset), seed);
    sources.push_back({std::move(view.dataset), config.sources[i].weight});
  }
  return {.dataset = std::make_shared<const MixtureDataset<TokenSample>>(std::move(sources)),
          .order = std::move(order),
          .shuffles_itself = true,
          .is_packed = is_packed};
}

TokenView view_of(const DatasetDataConfig& config, const Job& job) {
  constexpr std::int64_t kUnlimited = std::numeric_limits<std::int32_t>::max();
  return build_reference_view(build_documents(config, document_options(job)),
                              {.max_positions = job.options.max_positions.value_or(kUnlimited),
                               .presort_buffer_size = config.presort_buffer_size,
                               .global_batch_size = config.loader.global_batch_size,
                               .seed = static_cast<std::uint64_t>(config.shuffle_seed),
                               .shuffle = config.loader.shuffle});
}

std::function<TokenBatch(TokenBatch)> pinning(const AutoDataConfig& loader) {
  if (!loader.pin_memory || !detail::can_pin_memory()) return {};
  return [](const TokenBatch& batch) { return tree_map(detail::pin_memory, batch); };
}

TokenBatch collate(std::span<const TokenSample> samples) {
  return samples.front().packed_lengths.empty() ? collate_padded(samples) : collate_fixed(samples);
}

// The source of a job that is not a mixture; null for others.
template <class Data>
std::optional<SourceConfig> source_of(const Data& data) {
  if constexpr (requires { SourceConfig(data.source); }) {
    return SourceConfig(data.source);
  } else {
    return std::nullopt;
  }
}

std::unique_ptr<PackStream<TokenBatch>> build_streamed(const SourceConfig& config, const StreamedViewConfig& view,
                                                       const Job& job) {
  const SequenceConfig& sequence = sequence_of(config);
  check_length(sequence, job);
  const LoaderOptions loading = loader_options(job.loader);
  D9D_CHECK(loading.timeout_seconds == 0 && !job.loader.prefetch_factor && job.loader.drop_last, ConfigError,
            "[data::build_token_stream] expected no timeout and no prefetch_factor, and drop_last, with the view "
            "\"streamed\", got one of them. Each worker tokenises one part ahead; remove the keys.");
  TokenisableRows rows = build_rows(config, job.options.vocabulary_size, job.options.stream.log);
  const StreamOptions& stream = job.options.stream;
  return std::make_unique<StreamedPacks>(std::move(rows.rows), std::move(rows.encoder),
                                         StreamedOptions{.part = {.tokenize = rows.options,
                                                                  .max_positions = sequence.sequence_length,
                                                                  .long_documents = view.long_documents,
                                                                  .buffer_size = view.buffer_size,
                                                                  .seed = stream.seed,
                                                                  .shuffle = job.loader.shuffle},
                                                         .tokens_per_step = view.tokens_per_step,
                                                         .global_batch_size = job.loader.global_batch_size,
                                                         .microbatch_size = job.loader.microbatch_size,
                                                         .rank = stream.rank,
                                                         .mode = job.loader.shard_indexing_mode,
                                                         .num_workers = job.loader.num_workers,
                                                         .repeat = stream.repeat,
                                                         .on_batch = pinning(job.loader),
                                                         .log = stream.log});
}

}  // namespace

std::unique_ptr<PackStream<TokenBatch>> build_token_stream(const DataConfig& config, TokenStreamOptions options) {
  AutoDataConfig loader = loader_config(config);
  const auto source = std::visit([](const auto& data) { return source_of(data); }, config);
  if (source) {
    const auto* streamed = std::get_if<StreamedViewConfig>(&sequence_of(*source).view);
    if (streamed != nullptr) return build_streamed(*source, *streamed, {loader, options});
  }
  TokenView view = std::visit([&](const auto& data) { return view_of(data, {loader, options}); }, config);
  if (view.shuffles_itself) loader.shuffle = false;
  options.stream.dataset_order = view.order;
  return make_pack_stream<TokenBatch>(std::move(view.dataset), collate, loader, options.stream);
}

}  // namespace d9d
