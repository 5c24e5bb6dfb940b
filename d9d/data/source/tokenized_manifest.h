// The manifest of a folder of tokenised documents (tokenized_documents.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "d9d/data/source/token_dtype.h"

namespace d9d {

inline constexpr int kTokenizedFormat = 4;  // of the folder, and of the tokens that one text gives

struct TokenizedManifest {
  TokenDtype dtype = TokenDtype::kUint16;
  std::int64_t num_parts = 0;  // of the rows, that were read
  std::int64_t num_documents = 0;
  std::int64_t num_tokens = 0;
  std::optional<std::int64_t> num_targets = {};  // ranges of all documents; unset: all tokens are targets
  std::int64_t num_skipped = 0;                  // rows that were no documents
  std::string first_skipped = {};                // the place and problem of the first
};

inline constexpr std::string_view kTokensFile = "tokens.bin";
inline constexpr std::string_view kOffsetsFile = "offsets.bin";
inline constexpr std::string_view kPartsFile = "parts.bin";
inline constexpr std::string_view kTargetsFile = "targets.bin";
inline constexpr std::string_view kTargetOffsetsFile = "target_offsets.bin";
inline constexpr std::string_view kManifestFile = "manifest.json";

// The text of the file, and what it was made from (`made_from`, for people).
[[nodiscard]] std::string manifest_text(const TokenizedManifest& manifest, std::string_view made_from);
// Throws IoError that names the file unless it is a manifest of this format.
[[nodiscard]] TokenizedManifest read_tokenized_manifest(const std::filesystem::path& folder);

}  // namespace d9d
