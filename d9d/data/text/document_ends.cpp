#include "d9d/data/text/document_ends.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "d9d/data/text/encode_row.h"

namespace d9d {

namespace {

constexpr std::int64_t kDocumentsLookedAt = 64;

}  // namespace

bool end_with_special_tokens(const TokenDocuments& documents, const TextEncoder& encoder) {
  for (std::int64_t document = 0; document < std::min(kDocumentsLookedAt, documents.size()); ++document) {
    const std::int64_t length = documents.length(document);
    if (length == 0) continue;
    std::int64_t last = 0;
    documents.read(document, length - 1, {&last, 1});
    if (!encoder.is_special(last)) return false;
  }
  return true;
}

bool end_with_special_tokens(const TextRows& rows, const TextEncoder& encoder) {
  if (rows.num_parts() == 0) return true;
  std::int64_t num_documents = 0;
  bool all_end = true;
  std::string problem;
  const auto look = [&](const TextRow& row) {
    if (!all_end || num_documents == kDocumentsLookedAt || !row.ends) return;
    const auto document = encode_row(rows, 0, row, encoder, {.bad_rows = BadRows::kSkip}, problem);
    if (!document || document->tokens.empty()) return;
    ++num_documents;
    all_end = encoder.is_special(document->tokens.back());
  };
  for (std::int64_t piece = 0; piece < rows.num_pieces(0); ++piece) {
    rows.read_piece(0, piece, next_cut_of(encoder), look);
  }
  return all_end;
}

void warn_of_missing_ends(const TextEncoder& encoder, const Logger& log) {
  constexpr std::array<std::string_view, 6> kUsual = {"<|endoftext|>", "<|end_of_text|>", "</s>",
                                                      "<eos>",         "<|im_end|>",      "<|eot_id|>"};
  const auto known =
      std::ranges::find_if(kUsual, [&](std::string_view token) { return encoder.id_of(token).has_value(); });
  const std::string such_as = known == kUsual.end() ? "" : cat(", such as \"", *known, "\"");
  log.warning("data: no token ends a document, so the model does not learn to stop: set the key \"end_of_document\"",
              such_as, ".");
}

}  // namespace d9d
