// The manifest of a folder of tokenised documents (tokenized_documents.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "d9d/data/source/documents_identity.h"
#include "d9d/data/source/token_dtype.h"

namespace d9d {

inline constexpr int kTokenizedFormat = 4;  // version of the files, and of the tokenisation

struct TokenizedManifest {
  TokenDtype dtype = TokenDtype::kUint16;
  std::int64_t num_parts = 0;  // parts of the rows that were read
  std::int64_t num_documents = 0;
  std::int64_t num_tokens = 0;
  std::optional<std::int64_t> num_targets = {};  // target ranges of all documents; unset: all tokens are targets
  std::int64_t num_skipped = 0;                  // bad rows that were skipped
  std::string first_skipped = {};                // problem and place of the first skipped row
  DocumentsIdentity identity = {};
};

inline constexpr std::string_view kTokensFile = "tokens.bin";
inline constexpr std::string_view kOffsetsFile = "offsets.bin";
inline constexpr std::string_view kPartsFile = "parts.bin";
inline constexpr std::string_view kTargetsFile = "targets.bin";
inline constexpr std::string_view kTargetOffsetsFile = "target_offsets.bin";
inline constexpr std::string_view kManifestFile = "manifest.json";

// Returns the text of manifest.json. `made_from` describes the input for people who open the file; programs ignore it.
[[nodiscard]] std::string manifest_text(const TokenizedManifest& manifest, std::string_view made_from);
// Whether a path is a folder with a manifest, whatever is in it.
[[nodiscard]] bool is_tokenized_folder(const std::filesystem::path& path);
// Reads the manifest of a folder. Throws IoError that names the file if it is not a manifest of this format.
[[nodiscard]] TokenizedManifest read_tokenized_manifest(const std::filesystem::path& folder);

}  // namespace d9d
