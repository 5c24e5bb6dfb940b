#include "d9d/data/text/encode_row.h"

#include "d9d/base/check.h"

namespace d9d {

std::optional<EncodedRow> encode_row(const TextRows& rows, std::int64_t part, const TextRow& row,
                                     const TextEncoder& encoder, const TokenizeOptions& options, std::string& problem) {
  EncodedRow encoded{.problem = row.problem};
  if (encoded.problem.empty()) {
    try {
      encoded = encoder.encode_row(row.columns, options.end_of_document);
    } catch (const ConfigError& error) {  // the tokenizer's, of this text
      encoded.problem = error.what();
    }
  }
  if (encoded.problem.empty()) return encoded;
  problem = cat(encoded.problem, " in ", rows.place(part, row.row));
  D9D_CHECK(options.bad_rows == BadRows::kSkip, IoError, "[data::encode_row] expected rows of text, got ", problem,
            ". Mend this row, or set \"bad_rows\" to \"skip\" to leave such rows out.");
  return std::nullopt;
}

}  // namespace d9d
