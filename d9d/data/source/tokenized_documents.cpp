#include "d9d/data/source/tokenized_documents.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <utility>

#include "d9d/base/check.h"

namespace d9d {

namespace {

template <class Stored>
Stored load(const MappedFile& file, std::int64_t index) {
  Stored value;
  std::memcpy(&value, file.bytes().data() + index * std::int64_t{sizeof(Stored)}, sizeof(Stored));
  return value;
}

void check_size(const std::filesystem::path& path, const MappedFile& file, std::int64_t expected) {
  const std::int64_t num_bytes = std::ssize(file.bytes());
  D9D_CHECK(num_bytes == expected, IoError, "[data::TokenizedDocuments] expected '", path.string(), "' to have ",
            expected, " bytes as its manifest says, got ", num_bytes, ". Delete the folder: it is made again.");
}

}  // namespace

TokenizedDocuments::TokenizedDocuments(const std::filesystem::path& folder, std::int64_t vocabulary_size,
                                       TokenizedOrigin origin)
    : folder_(folder),
      vocabulary_size_(vocabulary_size),
      manifest_(read_tokenized_manifest(folder)),
      tokens_(folder / kTokensFile),
      offsets_(folder / kOffsetsFile),
      parts_(folder / kPartsFile),
      origin_(std::move(origin)) {
  check_size(folder / kTokensFile, tokens_, manifest_.num_tokens * bytes_per_token(manifest_.dtype));
  check_size(folder / kOffsetsFile, offsets_, (manifest_.num_documents + 1) * 8);
  check_size(folder / kPartsFile, parts_, manifest_.num_parts * 8);
  if (!manifest_.num_targets) return;
  targets_.emplace(folder);
  check_size(folder / kTargetsFile, targets_->ranges, *manifest_.num_targets * 8);
  check_size(folder / kTargetOffsetsFile, targets_->offsets, (manifest_.num_documents + 1) * 8);
}

std::int64_t TokenizedDocuments::offset(std::int64_t document) const { return load<std::int64_t>(offsets_, document); }

std::int64_t TokenizedDocuments::length(std::int64_t document) const {
  const std::int64_t begin = offset(document), end = offset(document + 1);
  D9D_CHECK(begin >= 0 && begin <= end && end <= manifest_.num_tokens, IoError,
            "[data::TokenizedDocuments] expected ascending offsets up to ", manifest_.num_tokens, " in '",
            (folder_ / kOffsetsFile).string(), "', got ", begin, " and ", end, " at document ", document,
            ". Delete the folder: it is made again.");
  return end - begin;
}

void TokenizedDocuments::read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const {
  D9D_ASSERT(start >= 0 && start + std::ssize(tokens) <= length(document), "tokens ", start, "+", tokens.size());
  const std::int64_t byte = (offset(document) + start) * bytes_per_token(manifest_.dtype);
  read_tokens(tokens_.bytes().data() + byte, manifest_.dtype, tokens);
  const auto bad = first_outside(tokens, vocabulary_size_);
  D9D_CHECK(!bad, IoError, "[data::TokenizedDocuments] expected token ids below vocabulary_size = ", vocabulary_size_,
            ", got ", tokens[*bad], " at token ", start + *bad, " of ", place(document),
            ". Enlarge the model's vocabulary, or take the tokenizer that belongs to it.");
}

std::vector<TokenRange> TokenizedDocuments::targets(std::int64_t document) const {
  if (!targets_) return TokenDocuments::targets(document);
  const auto first = load<std::int64_t>(targets_->offsets, document);
  const auto end = load<std::int64_t>(targets_->offsets, document + 1);
  D9D_CHECK(first >= 0 && first <= end && end <= *manifest_.num_targets, IoError,
            "[data::TokenizedDocuments] expected ascending offsets up to ", *manifest_.num_targets, " in '",
            (folder_ / kTargetOffsetsFile).string(), "', got ", first, " and ", end, " at document ", document,
            ". Delete the folder: it is made again.");
  std::vector<TokenRange> ranges;
  for (std::int64_t i = first; i < end; ++i) {
    ranges.push_back(
        {.begin = load<std::int32_t>(targets_->ranges, 2 * i), .end = load<std::int32_t>(targets_->ranges, 2 * i + 1)});
  }
  return ranges;
}

std::string TokenizedDocuments::place(std::int64_t document) const {
  if (!origin_.place_of_row) return cat("document ", document, " of '", folder_.string(), "'");
  const auto parts = std::views::iota(std::int64_t{0}, manifest_.num_parts);
  const auto end_of = [this](std::int64_t part) { return load<std::int64_t>(parts_, part); };
  const std::int64_t part = *std::ranges::upper_bound(parts, document, {}, end_of);
  return origin_.place_of_row(part, document - (part == 0 ? 0 : end_of(part - 1)));
}

std::string TokenizedDocuments::name() const { return cat("'", folder_.string(), "'"); }

DataDescription TokenizedDocuments::describe() const {
  const std::string skipped =
      manifest_.num_skipped == 0 ? "" : cat(", without ", counted(manifest_.num_skipped, "bad row"));
  return {.line = cat(counted(size(), "document"), " of ", counted(manifest_.num_tokens, "token"), " in all", skipped),
          .inputs = {{.line = origin_.name.empty() ? name() : origin_.name}}};
}

}  // namespace d9d
