#include "d9d/data/source/tokenized_manifest.h"

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/json_integer.h"
#include "d9d/base/io/mapped_file.h"

namespace d9d {

std::string manifest_text(const TokenizedManifest& manifest, std::string_view made_from) {
  const nlohmann::json json = {{"format", kTokenizedFormat},
                               {"dtype", enum_name(manifest.dtype)},
                               {"num_parts", manifest.num_parts},
                               {"num_documents", manifest.num_documents},
                               {"num_tokens", manifest.num_tokens},
                               {"num_targets", manifest.num_targets ? nlohmann::json(*manifest.num_targets) : nullptr},
                               {"num_skipped", manifest.num_skipped},
                               {"first_skipped", manifest.first_skipped},
                               {"identity", to_json(manifest.identity)},
                               {"made_from", made_from}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool is_tokenized_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path / kManifestFile, error);
}

TokenizedManifest read_tokenized_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestFile;
  const MappedFile file(path);
  const std::string_view text{reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    const std::int64_t format = json_integer(json.at("format"));
    D9D_CHECK(format == kTokenizedFormat, IoError, "[data::read_tokenized_manifest] expected format ", kTokenizedFormat,
              " of '", path.string(), "', got ", format, ". Delete the folder: it is made again.");
    const auto dtype = json.at("dtype").get<std::string>() == "uint16" ? TokenDtype::kUint16 : TokenDtype::kUint32;
    return {.dtype = dtype,
            .num_parts = json_integer(json.at("num_parts")),
            .num_documents = json_integer(json.at("num_documents")),
            .num_tokens = json_integer(json.at("num_tokens")),
            .num_targets =
                json.at("num_targets").is_null() ? std::nullopt : std::optional(json_integer(json.at("num_targets"))),
            .num_skipped = json_integer(json.at("num_skipped")),
            .first_skipped = json.at("first_skipped").get<std::string>(),
            .identity = documents_identity(json.at("identity"))};
  } catch (const nlohmann::json::exception& error) {
    throw IoError(cat("[data::read_tokenized_manifest] expected a manifest of tokenised documents in '", path.string(),
                      "', got ", error.what(), ". Delete the folder: it is made again."));
  }
}

}  // namespace d9d
