#include "d9d/data/sequences/concatenated_tokens.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {

namespace {
constexpr std::int64_t kDocumentsPerMark = 64;  // so marks_ takes an eighth of a byte per document
}

ConcatenatedTokens::ConcatenatedTokens(std::shared_ptr<const TokenDocuments> documents,
                                       std::optional<std::int64_t> separator)
    : documents_(std::move(documents)), separator_(separator) {
  const std::int64_t num_documents = documents_->size();
  for (std::int64_t document = 0; document < num_documents; ++document) {
    if (separator && document > 0) ++size_;
    if (document % kDocumentsPerMark == 0) marks_.push_back(size_);
    size_ += documents_->length(document);
  }
}

DataDescription ConcatenatedTokens::describe() const {
  return {.line = cat(counted(size_, "token"), ", documents one after the other",
                      separator_ ? cat(", with token ", *separator_, " between them") : ""),
          .inputs = {documents_->describe()}};
}

void ConcatenatedTokens::read(std::int64_t start, std::span<std::int64_t> tokens) const {
  D9D_ASSERT(start >= 0 && start + std::ssize(tokens) <= size_, "tokens ", start, "+", tokens.size(), " of ", size_);
  if (tokens.empty()) return;
  // If all documents of a mark are empty, the next mark is at the same token, and upper_bound selects the later one.
  const auto mark = std::max<std::int64_t>(std::ranges::upper_bound(marks_, start) - marks_.begin() - 1, 0);
  std::int64_t position = start - marks_[mark];  // relative to the document; may be after its end
  for (std::int64_t document = mark * kDocumentsPerMark; !tokens.empty(); ++document) {
    const std::int64_t length = documents_->length(document);
    if (position < length) {
      const auto count = std::min<std::int64_t>(length - position, std::ssize(tokens));
      documents_->read(document, position, tokens.first(count));
      tokens = tokens.subspan(count);
      position += count;
    }
    position -= length;
    if (tokens.empty() || !separator_) continue;
    if (position == 0) {
      tokens.front() = *separator_;
      tokens = tokens.subspan(1);
    } else {
      --position;
    }
  }
}

}  // namespace d9d
