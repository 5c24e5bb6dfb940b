#include "d9d/data/text/encode_row.h"

#include "d9d/base/check.h"

namespace d9d {

namespace {

EncodedRow encoded_piece(const TextRow& row, const TextEncoder& encoder, std::optional<std::int64_t> end) {
  if (row.begins && row.ends) return encoder.encode_row(row.columns, end);
  EncodedRow encoded;
  std::vector<std::int64_t>& ids = encoded.tokens;
  if (row.begins) ids.assign(encoder.tokens_before().begin(), encoder.tokens_before().end());
  encoder.encode(row.columns.front(), ids);
  if (!row.ends) return encoded;
  ids.insert(ids.end(), encoder.tokens_behind().begin(), encoder.tokens_behind().end());
  if (end) ids.push_back(*end);
  return encoded;
}

}  // namespace

NextCut next_cut_of(const TextEncoder& encoder) {
  return
      [&encoder](std::string_view text, std::size_t from, std::size_t to) { return encoder.next_cut(text, from, to); };
}

std::optional<EncodedRow> encode_row(const TextRows& rows, std::int64_t part, const TextRow& row,
                                     const TextEncoder& encoder, const TokenizeOptions& options, std::string& problem) {
  EncodedRow encoded{.problem = row.problem};
  if (encoded.problem.empty()) {
    try {
      encoded = encoded_piece(row, encoder, options.end_of_document);
    } catch (const ConfigError& error) {  // the tokenizer cannot encode this text
      encoded.problem = error.what();
    }
  }
  if (encoded.problem.empty()) return encoded;
  problem = cat(encoded.problem, " in ", rows.place(part, row.row));
  D9D_CHECK(row.begins && row.ends, IoError, "[data::encode_row] expected a text that has tokens, got ", problem,
            ". Correct the text, or cut the file: one that is read in pieces is not left out.");
  D9D_CHECK(options.bad_rows == BadRows::kSkip, IoError, "[data::encode_row] expected rows of text, got ", problem,
            ". Correct this row, or set \"bad_rows\" to \"skip\" to leave such rows out.");
  return std::nullopt;
}

}  // namespace d9d
