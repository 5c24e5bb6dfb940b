// Identifies documents of tokens independently of file names. A job that resumes compares this identity with the saved
// one.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "d9d/tokenizer/tokenizer_identity.h"

namespace d9d {

struct DocumentsIdentity {
  std::string tokens = {};  // hash of tokens and targets (for token files: of sampled blocks); empty: unknown
  TokenizerIdentity tokenizer = {};
};

// Returns {"tokens": ..., "tokenizer": ..., "vocabulary": ...}.
[[nodiscard]] nlohmann::json to_json(const DocumentsIdentity& identity);
// The inverse of to_json(). Throws nlohmann::json::exception.
[[nodiscard]] DocumentsIdentity documents_identity(const nlohmann::json& json);

// Returns a text that says how the data of this run (`own`) differs from that of a saved run, such as ", got other
// documents in source 1". Both are lists with the to_json() of each source. Empty if they are equal or one of them is
// unknown (null). Equal tokens of tokenizers with equal vocabularies are the same data, even if the tokenizers differ
// otherwise. Throws nlohmann::json::exception.
[[nodiscard]] std::string difference_of_data(const nlohmann::json& saved, const nlohmann::json& own);
// The remedy for different data, for the end of an error message.
inline constexpr std::string_view kOtherDataRemedy =
    "Resume with that, give trainer.data_phase a new name to go on with this data from its start, or begin a new job, "
    "in another save_dir, with the checkpoint as "
    "trainer.model_stage_factory.source_checkpoint (without it where the ids are of another tokenizer).";

// Returns the FNV-1a hash of a text as 16 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::string_view text);

}  // namespace d9d
