// What documents of tokens are, whatever their files are called: a job that continues compares it.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "d9d/tokenizer/tokenizer_identity.h"

namespace d9d {

struct DocumentsIdentity {
  std::string tokens = {};  // a hash of them and of what is predicted, of large files of samples; empty: unknown
  TokenizerIdentity tokenizer = {};
};

// {"tokens": ..., "tokenizer": ..., "vocabulary": ...}
[[nodiscard]] nlohmann::json to_json(const DocumentsIdentity& identity);
// Throws nlohmann::json::exception.
[[nodiscard]] DocumentsIdentity documents_identity(const nlohmann::json& json);

// What differs between the data of a saved run and the own, lists of to_json() by source: ", got other documents in
// source 1"; empty: nothing, or one of them is unknown (null). Equal ids of equal texts are the same data, whatever
// else their tokenizers have. Throws nlohmann::json::exception.
[[nodiscard]] std::string difference_of_data(const nlohmann::json& saved, const nlohmann::json& own);
// What to do about it, for the end of a message.
inline constexpr std::string_view kOtherDataRemedy =
    "Resume with that, or begin a new job, in another save_dir, with the checkpoint as "
    "trainer.model_stage_factory.source_checkpoint (without it where the ids are of another tokenizer).";

// 16 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::string_view text);

}  // namespace d9d
