#include "d9d/data/build/token_stream.h"

#include <algorithm>
#include <cstdint>
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
#include "d9d/data/build/build_documents.h"
#include "d9d/data/build/build_view.h"
#include "d9d/data/build/text_format.h"
#include "d9d/data/sequences/mixture_dataset.h"
#include "d9d/data/sequences/shuffled_dataset.h"
#include "d9d/data/source/tokenized_manifest.h"
#include "d9d/data/stream/streamed_packs.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

namespace {

// The settings that all sources of a job share.
struct Job {
  const AutoDataConfig& loader;
  const TokenStreamOptions& options;
};

DocumentOptions document_options(const Job& job) {
  return {.vocabulary_size = job.options.vocabulary_size,
          .shows_progress = job.options.shows_progress,
          .log = job.options.stream.log,
          .shared_log = job.options.stream.shared_log};
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

// Returns whether the source has tokens, such as prompts, that are only inputs and not predicted.
bool has_targets(const SourceConfig& config) {
  return std::visit(
      [](const auto& source) {
        if constexpr (requires { source.columns; }) {
          return source.columns.prompt_column || source.columns.messages_column;
        } else if constexpr (requires { source.path; }) {
          return is_tokenized_folder(source.path) && read_tokenized_manifest(source.path).num_targets.has_value();
        } else {
          return false;
        }
      },
      config);
}

// Throws ConfigError for pairs of answers, which a job on next tokens would learn one like the other.
void refuse_pairs(const SourceConfig& config) {
  std::visit(
      [](const auto& source) {
        if constexpr (requires { source.columns; }) {
          D9D_CHECK(!source.columns.pairs, ConfigError,
                    "[data::build_token_stream] expected rows that are documents, got pairs. Read them by a job that "
                    "trains on preferences (examples/dpo), or name messages_column, or a column, instead.");
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
  std::shared_ptr<const TokenDocuments> documents = build_documents(config, document_options(job));
  DocumentsIdentity identity = documents->identity();
  TokenView view = build_view(std::move(documents), sequence_of(config),
                              {.seed = seed,
                               .shuffle = job.loader.shuffle,
                               .global_batch_size = job.loader.global_batch_size,
                               .separator = document_separator(config),
                               .log = job.options.stream.shared_log});
  view.sources = {std::move(identity)};
  return view;
}

// Returns the lowest id that has different texts in the two tokenizers; nullopt if there is none.
std::optional<std::uint32_t> id_of_two_texts(const Tokenizer& one, const Tokenizer& other) {
  for (std::uint32_t id = 0; id <= std::min(one.highest_id(), other.highest_id()); ++id) {
    const auto text = one.id_to_token(id), other_text = other.id_to_token(id);
    if (text && other_text && *text != *other_text) return id;
  }
  return std::nullopt;
}

// A tokenizer, and the first source that uses it.
struct SourceTokenizer {
  std::size_t source;
  TextFormat format;
};

std::vector<SourceTokenizer> different_tokenizers(const MixtureDataConfig& config) {
  std::vector<SourceTokenizer> all;
  for (std::size_t i = 0; i < config.sources.size(); ++i) {
    const std::optional<TextFormat> format = text_format(config.sources[i].source);
    const auto is_same = [&](const SourceTokenizer& other) { return other.format.tokenizer == format->tokenizer; };
    if (format && std::ranges::none_of(all, is_same)) all.push_back({.source = i, .format = *format});
  }
  return all;
}

// Called before anything is tokenised. Throws ConfigError if an id has different texts in the tokenizers of two
// sources; warns if tokenizers differ otherwise, as a base and a chat tokenizer do. Does not check sources of token
// ids, whose tokenizer is unknown.
void check_same_tokenizer(const MixtureDataConfig& config, const Logger& log) {
  const std::vector<SourceTokenizer> all = different_tokenizers(config);
  if (all.size() < 2) return;
  std::vector<Tokenizer> tokenizers;
  for (const SourceTokenizer& each : all) tokenizers.push_back(tokenizer_of(each.format));
  const auto place = [&](std::size_t i) { return cat(tokenizer_name(all[i].format), " in source ", all[i].source); };
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t before = 0; before < i; ++before) {
      const auto id = id_of_two_texts(tokenizers[before], tokenizers[i]);
      D9D_CHECK(!id, ConfigError, "[data::build_token_stream] expected one tokenizer in all sources of a mixture, got ",
                place(before), " and ", place(i), ", in which the id ", *id, " is '",
                *tokenizers[before].id_to_token(*id), "' and '", *tokenizers[i].id_to_token(*id),
                "'. Name the model's in both.");
    }
    if (tokenizers[i].identity() == tokenizers[0].identity()) continue;
    log.warning("data: ", place(i), " has the ids of ", place(0), ", and other added tokens, merges or rules");
  }
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

// Warns if two sources read the same path. This is often a mistake, unless they read different columns.
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

// Each source is shuffled separately, with a different seed.
TokenView view_of(const MixtureDataConfig& config, const Job& job) {
  check_same_tokenizer(config, job.options.stream.shared_log);
  warn_of_shared_paths(config, job.options.stream.shared_log);
  std::vector<MixtureDataset<TokenSample>::Source> sources;
  std::string order = "mixture of";
  bool is_packed = false;
  std::vector<DocumentsIdentity> identities;
  for (std::size_t i = 0; i < config.sources.size(); ++i) {
    refuse_pairs(config.sources[i].source);
    const std::uint64_t seed = philox_key(job.options.stream.seed, "mixture", std::to_string(i));
    TokenView view = view_of_source(config.sources[i].source, job, seed);
    D9D_CHECK(
        i == 0 || view.is_packed == is_packed, ConfigError,
        "[data::build_token_stream] expected sources of a mixture that are all packed or all not, got both. Change "
        "their views.");
    is_packed = view.is_packed;
    identities.push_back(view.sources.front());
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
          .is_packed = is_packed,
          .sources = std::move(identities)};
}

TokenView view_of(const DatasetDataConfig& config, const Job& job) {
  constexpr std::int64_t kUnlimited = std::numeric_limits<std::int32_t>::max();
  std::shared_ptr<const TokenDocuments> documents = build_documents(config, document_options(job));
  DocumentsIdentity identity = documents->identity();
  TokenView view =
      build_reference_view(std::move(documents), {.max_positions = job.options.max_positions.value_or(kUnlimited),
                                                  .presort_buffer_size = config.presort_buffer_size,
                                                  .global_batch_size = config.loader.global_batch_size,
                                                  .seed = static_cast<std::uint64_t>(config.shuffle_seed),
                                                  .shuffle = config.loader.shuffle});
  view.sources = {std::move(identity)};
  return view;
}

// Returns null if the identity of any source is unknown.
nlohmann::json identity_of(const TokenView& view) {
  nlohmann::json identity = nlohmann::json::array();
  for (const DocumentsIdentity& source : view.sources) {
    if (source.tokens.empty()) return nullptr;
    identity.push_back(to_json(source));
  }
  return identity;
}

std::function<TokenBatch(TokenBatch)> pinning(const AutoDataConfig& loader) {
  if (!loader.pin_memory || !detail::can_pin_memory()) return {};
  return [](const TokenBatch& batch) { return tree_map(detail::pin_memory, batch); };
}

std::function<TokenBatch(std::span<const TokenSample>)> collating(const DeviceMeshParameters& mesh) {
  return [multiple = mesh.position_divisor()](std::span<const TokenSample> samples) {
    return samples.front().packed_lengths.empty() ? collate_padded_to_multiple(samples, multiple)
                                                  : collate_fixed_to_multiple(samples, multiple);
  };
}

// Returns the SourceConfig of `data`; nullopt for mixtures, which have several, and for DatasetDataConfig, which has
// none.
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
  (void)loader_options(job.loader);
  D9D_CHECK(job.loader.timeout.value_or(0) == 0 && !job.loader.prefetch_factor && job.loader.drop_last.value_or(true),
            ConfigError,
            "[data::build_token_stream] expected no timeout and no prefetch_factor, and drop_last, with the view "
            "\"streamed\", got one of them. Each worker tokenises one part ahead; remove the keys.");
  TokenisableRows rows = build_rows(config, job.options.vocabulary_size, job.options.stream.shared_log);
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
                                                         .length_multiple = job.options.mesh.position_divisor(),
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
    refuse_pairs(*source);
    const auto* streamed = std::get_if<StreamedViewConfig>(&sequence_of(*source).view);
    if (streamed != nullptr) return build_streamed(*source, *streamed, {loader, options});
  }
  TokenView view = std::visit([&](const auto& data) { return view_of(data, {loader, options}); }, config);
  if (view.shuffles_itself) loader.shuffle = false;
  options.stream.dataset_order = view.order;
  options.stream.dataset_identity = identity_of(view);
  return make_pack_stream<TokenBatch>(std::move(view.dataset), collating(options.mesh), loader, options.stream);
}

}  // namespace d9d
