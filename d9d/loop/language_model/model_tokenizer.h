// Checks that the tokenizer of the data fits the model whose weights a job begins with, and collects the tokenizer
// files of an export, so that other programs can generate text with the model.
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
#include "d9d/data/build/config.h"

namespace d9d {

// Local. Compares the tokenizer of the data with that of source_checkpoint: the one in a Hugging Face folder, or the
// one of the job that saved a checkpoint. Throws ConfigError if an id other than an added token's stands for different
// texts in the two. The main process warns if only added tokens, merges or rules differ, or if the file cannot be
// parsed. Does nothing if one of the two tokenizers is unknown.
void check_tokenizer(const DistContext& context, const DataConfig& data,
                     const std::filesystem::path& source_checkpoint);

struct TokenizerFilesOptions {
  std::optional<std::filesystem::path> source_checkpoint = {};
  std::optional<std::filesystem::path> tokenizer = {};  // used if the data is ids and source_checkpoint has none
  std::int64_t max_positions = 0;                       // longest sequence of the model; 0: unknown
};

// Local. Returns the texts of tokenizer.json, tokenizer_config.json, special_tokens_map.json, added_tokens.json, the
// chat template and generation_config.json, by file name. They belong to the tokenizer of the data or, for data of
// token ids, to that of source_checkpoint. Data of bytes gets a tokenizer.json whose tokens are bytes. Tokens that end
// a text or an answer in the data are also end tokens in generation_config.json. Empty if no tokenizer is known. The
// main process warns if the data has conversations and their chat template is not known as a text. Throws as
// chat_renderer().
[[nodiscard]] std::map<std::string, std::string> tokenizer_files(const DistContext& context, const DataConfig& data,
                                                                 const TokenizerFilesOptions& options);

}  // namespace d9d
