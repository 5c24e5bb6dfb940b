// The tokenizer of a job's text: whether the model that the job begins with knows its ids, and the files of it that an
// export carries, so that other programs write text with the model.
//
// Example
//   check_tokenizer(context, config.data, source_checkpoint);
//   for (auto& [name, text] : tokenizer_files(context, config.data, {.source_checkpoint = source_checkpoint})) ...
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/data/config.h"

namespace d9d {

// Local. Compares the data's tokenizer with the one beside the weights of a Hugging Face folder, or with the one of the
// job that saved a checkpoint. Throws ConfigError if an id that is no added token is another text there; the main
// process warns where the rest differs, or cannot be read. Where one of the two is unknown there is nothing to compare.
void check_tokenizer(const DistContext& context, const DataConfig& data,
                     const std::filesystem::path& source_checkpoint);

struct TokenizerFilesOptions {
  std::optional<std::filesystem::path> source_checkpoint = {};
  std::optional<std::filesystem::path> tokenizer = {};  // of data of ids, where source_checkpoint has none
  std::int64_t max_positions = 0;                       // of the model
};

// Local. tokenizer.json, tokenizer_config.json, the chat template and generation_config.json, by name: those of the
// data, and where it is of ids those beside the weights of source_checkpoint. Data of bytes has a tokenizer.json of
// bytes. What ends a text or an answer in the data ends it in generation_config.json too. Empty if no tokenizer is
// known. The main process warns where the files and the data have different chat templates. Throws as chat_family().
[[nodiscard]] std::map<std::string, std::string> tokenizer_files(const DistContext& context, const DataConfig& data,
                                                                 const TokenizerFilesOptions& options);

}  // namespace d9d
