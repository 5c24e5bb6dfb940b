#include "d9d/data/source/token_documents.h"

#include <algorithm>

#include "d9d/base/check.h"

namespace d9d {

DataDescription TokenDocuments::describe() const { return {.line = cat(counted(size(), "document"), " of ", name())}; }

JoinedDocuments::JoinedDocuments(std::vector<std::shared_ptr<const TokenDocuments>> sources)
    : sources_(std::move(sources)) {
  D9D_CHECK(!sources_.empty(), ConfigError,
            "[data::JoinedDocuments] expected at least one source, got none. Name the files to read.");
  std::int64_t end = 0;
  for (const auto& source : sources_) ends_.push_back(end += source->size());
}

JoinedDocuments::Found JoinedDocuments::find(std::int64_t document) const {
  const auto index = std::ranges::upper_bound(ends_, document) - ends_.begin();
  return {*sources_[static_cast<std::size_t>(index)], index == 0 ? document : document - ends_[index - 1]};
}

std::int64_t JoinedDocuments::length(std::int64_t document) const {
  const Found found = find(document);
  return found.source.length(found.document);
}

void JoinedDocuments::read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const {
  const Found found = find(document);
  found.source.read(found.document, start, tokens);
}

std::vector<TokenRange> JoinedDocuments::targets(std::int64_t document) const {
  const Found found = find(document);
  return found.source.targets(found.document);
}

bool JoinedDocuments::has_targets() const {
  return std::ranges::any_of(sources_, [](const auto& source) { return source->has_targets(); });
}

std::string JoinedDocuments::place(std::int64_t document) const {
  const Found found = find(document);
  return found.source.place(found.document);
}

DocumentsIdentity JoinedDocuments::identity() const {
  DocumentsIdentity joined = sources_.front()->identity();
  for (std::size_t i = 1; i < sources_.size(); ++i) {
    const DocumentsIdentity next = sources_[i]->identity();
    const bool is_known = !joined.tokens.empty() && !next.tokens.empty();
    joined.tokens = is_known ? hash_text(cat(joined.tokens, " ", next.tokens)) : "";
    if (next.tokenizer != joined.tokenizer) joined.tokenizer = {};
  }
  return joined;
}

std::string JoinedDocuments::name() const {
  return sources_.size() == 1 ? sources_.front()->name()
                              : cat(sources_.front()->name(), " and ", sources_.size() - 1, " more sources");
}

}  // namespace d9d
