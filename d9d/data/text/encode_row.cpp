#include "d9d/data/text/encode_row.h"

#include "d9d/base/check.h"

namespace d9d {

std::optional<EncodedRow> encode_row(const TextRows& rows, std::int64_t part, const TextRow& row,
                                     const TextEncoder& encoder, const TokenizeOptions& options, std::string& problem) {
  if (!row.problem.empty()) {
    problem = cat(row.problem, " in ", rows.place(part, row.row));
    D9D_CHECK(options.bad_rows == BadRows::kSkip, IoError, "[data::encode_row] expected rows of text, got ", problem,
              ". Mend it, or set \"bad_rows\" to \"skip\".");
    return std::nullopt;
  }
  EncodedRow encoded;
  for (std::size_t i = 0; i < row.columns.size(); ++i) {
    if (i > 0) encoded.prompt_length = std::ssize(encoded.tokens);
    encoder.encode(row.columns[i], encoded.tokens);
  }
  if (options.end_of_document) encoded.tokens.push_back(*options.end_of_document);
  return encoded;
}

}  // namespace d9d
