#include "d9d/data/text/token_cache.h"

#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/base/fnv1a.h"
#include "d9d/base/io/posix.h"
#include "d9d/base/progress/progress_bar.h"
#include "d9d/data/text/encode_row.h"

namespace d9d {

namespace {

bool is_there(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder / kManifestFile, error);
}

// Tokenises into `folder`. An IoError is ignored if the folder exists afterwards: another process was first.
void make(const TextRows& rows, const TextEncoder& encoder, const TokenCacheOptions& options,
          const std::filesystem::path& folder) {
  detail::make_writable_folder(options.folder);
  TokenizeOptions tokenize = options.tokenize;
  std::optional<ProgressBar> bar;
  if (options.shows_progress) {
    bar.emplace(ProgressBarOptions{.label = "tokenise", .total = rows.num_parts()});
    tokenize.on_progress = [&bar](std::int64_t num_parts, std::int64_t num_tokens) {
      bar->update(num_parts, {short_number(static_cast<double>(num_tokens)) + " tokens"});
    };
  }
  try {
    const TokenizedManifest made = tokenize_rows(rows, encoder, tokenize, folder);
    if (const std::string remark = encoder.remark(); !remark.empty()) options.log.warning("data: ", remark);
    if (made.num_skipped > 0) {
      options.log.warning("data: skipped ", made.num_skipped, " bad rows, the first: ", made.first_skipped);
    }
  } catch (const IoError&) {
    if (!is_there(folder)) throw;
  }
}

// Returns the place of the row that became document `index` of a part. Bad rows do not become documents.
std::string place_of_row(const TextRows& rows, const TextEncoder& encoder, std::int64_t part, std::int64_t index) {
  std::string place, problem;
  rows.read(part, [&](const TextRow& row) {
    if (!place.empty()) return;
    const bool is_good = encode_row(rows, part, row, encoder, {.bad_rows = BadRows::kSkip}, problem).has_value();
    if (is_good && index-- == 0) place = rows.place(part, row.row);
  });
  return place;
}

}  // namespace

std::string token_cache_key(const TextRows& rows, const TextEncoder& encoder, const TokenizeOptions& options) {
  const std::string all =
      cat("format ", kTokenizedFormat, "\n", rows.fingerprint(), "\nencoder ", encoder.fingerprint(), "\nend ",
          options.end_of_document.value_or(-1), "\nbad ", enum_name(options.bad_rows), "\nmost ", options.max_rows);
  constexpr std::uint64_t kOtherBasis = 0x9e3779b97f4a7c15;
  std::array<char, 33> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx", static_cast<unsigned long long>(fnv1a(all)),
                static_cast<unsigned long long>(fnv1a(all, kOtherBasis)));
  return text.data();
}

std::shared_ptr<const TokenizedDocuments> cached_documents(std::shared_ptr<const TextRows> rows,
                                                           std::shared_ptr<const TextEncoder> encoder,
                                                           const TokenCacheOptions& options) {
  const std::filesystem::path folder = options.folder / token_cache_key(*rows, *encoder, options.tokenize);
  if (!is_there(folder)) make(*rows, *encoder, options, folder);
  const auto place = [rows, encoder = std::move(encoder)](std::int64_t part, std::int64_t index) {
    return place_of_row(*rows, *encoder, part, index);
  };
  return std::make_shared<const TokenizedDocuments>(folder, options.vocabulary_size,
                                                    TokenizedOrigin{.name = rows->name(), .place_of_row = place});
}

std::filesystem::path default_token_cache() {
  if (const auto cache = environment_variable("XDG_CACHE_HOME"))
    return std::filesystem::path(*cache) / "d9d" / "tokens";
  const auto home = environment_variable("HOME");
  D9D_CHECK(home, ConfigError,
            "[data::default_token_cache] expected XDG_CACHE_HOME or HOME, got neither. Set the key \"cache\" of the "
            "data to a folder.");
  return std::filesystem::path(*home) / ".cache" / "d9d" / "tokens";
}

}  // namespace d9d
