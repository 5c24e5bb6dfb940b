#include "d9d/data/text/tokenize_rows.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/base/io/atomic_directory.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/data/loader/ordered_workers.h"
#include "d9d/data/text/encode_row.h"

namespace d9d {

namespace {

// Piece number `index` of part `part` of the rows.
struct Piece {
  std::int64_t part = 0;
  std::int64_t index = 0;
  bool is_last = true;
};

std::vector<Piece> pieces_of(const TextRows& rows) {
  std::vector<Piece> pieces;
  for (std::int64_t part = 0; part < rows.num_parts(); ++part) {
    const std::int64_t count = rows.num_pieces(part);
    for (std::int64_t i = 0; i < count; ++i) pieces.push_back({.part = part, .index = i, .is_last = i + 1 == count});
  }
  return pieces;
}

// The encoded documents of a piece.
struct EncodedPiece {
  std::vector<std::byte> tokens = {};
  std::vector<std::int64_t> lengths = {};
  bool goes_on = false;  // the last document continues in the next piece
  bool has_targets = false;
  std::vector<TokenRange> targets = {};
  std::vector<std::int64_t> num_targets = {};  // number of ranges of each document
  std::int64_t num_skipped = 0;
  std::string first_skipped = {};
};

template <class Stored>
void append(const std::vector<std::int64_t>& ids, std::vector<std::byte>& bytes) {
  std::vector<Stored> stored(ids.size());
  std::ranges::transform(ids, stored.begin(), [](std::int64_t id) { return static_cast<Stored>(id); });
  const auto raw = std::as_bytes(std::span(stored));
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

EncodedPiece encode_piece(const TextRows& rows, const Piece& piece, const TextEncoder& encoder,
                          const TokenizeOptions& options, TokenDtype dtype) {
  EncodedPiece encoded;
  rows.read_piece(piece.part, piece.index, next_cut_of(encoder), [&](const TextRow& row) {
    std::string problem;
    const auto document = encode_row(rows, piece.part, row, encoder, options, problem);
    if (!document) {
      if (encoded.num_skipped == 0) encoded.first_skipped = problem;
      encoded.num_skipped += row.num_rows;
      return;
    }
    if (document->targets) {
      encoded.has_targets = true;
      encoded.targets.insert(encoded.targets.end(), document->targets->begin(), document->targets->end());
      encoded.num_targets.push_back(std::ssize(*document->targets));
    }
    encoded.lengths.push_back(std::ssize(document->tokens));
    encoded.goes_on = !row.ends;
    if (dtype == TokenDtype::kUint16) {
      append<std::uint16_t>(document->tokens, encoded.tokens);
    } else {
      append<std::uint32_t>(document->tokens, encoded.tokens);
    }
  });
  return encoded;
}

// Writes the pieces into a staging folder.
class Writer {
 public:
  Writer(const std::filesystem::path& folder, TokenDtype dtype)
      : folder_(folder), tokens_(folder / kTokensFile), offsets_(folder / kOffsetsFile), parts_(folder / kPartsFile) {
    manifest_.dtype = dtype;
    put<std::int64_t>(offsets_, {0});
  }

  void append(const EncodedPiece& part, bool ends_part, std::int64_t max_rows) {
    const std::int64_t most = max_rows < 0 ? std::ssize(part.lengths) : max_rows - manifest_.num_documents;
    const auto count = std::clamp<std::int64_t>(most, 0, std::ssize(part.lengths));
    std::vector<std::int64_t> ends;
    const std::int64_t first = manifest_.num_tokens;
    for (std::int64_t i = 0; i < count; ++i) ends.push_back(manifest_.num_tokens += part.lengths[i]);
    if (part.goes_on && count == std::ssize(part.lengths)) ends.pop_back();
    manifest_.num_documents += std::ssize(ends);
    put(offsets_, ends);
    if (ends_part) {
      ++manifest_.num_parts;
      put<std::int64_t>(parts_, {manifest_.num_documents});
    }
    const std::int64_t num_bytes = (manifest_.num_tokens - first) * bytes_per_token(manifest_.dtype);
    const auto tokens = std::span(part.tokens).first(static_cast<std::size_t>(num_bytes));
    tokens_.write(tokens);
    add_to(tokens_hash_, tokens);
    add_to(ends_hash_, std::as_bytes(std::span(ends)));
    if (part.has_targets) append_targets(part, count);
    if (manifest_.num_skipped == 0) manifest_.first_skipped = part.first_skipped;
    manifest_.num_skipped += part.num_skipped;
  }

  TokenizedManifest finish(std::string_view made_from, TokenizerIdentity tokenizer) {
    manifest_.identity = {
        .tokens = hash_text(cat(tokens_hash_, " ", ends_hash_, " ", targets_hash_, " ", target_ends_hash_)),
        .tokenizer = std::move(tokenizer)};
    tokens_.commit();
    offsets_.commit();
    parts_.commit();
    if (targets_) {
      targets_->ranges.commit();
      targets_->offsets.commit();
    }
    write_file_atomically(folder_ / kManifestFile, manifest_text(manifest_, made_from));
    return manifest_;
  }

  [[nodiscard]] const TokenizedManifest& manifest() const { return manifest_; }

 private:
  struct Targets {
    explicit Targets(const std::filesystem::path& folder)
        : ranges(folder / kTargetsFile), offsets(folder / kTargetOffsetsFile) {}
    AtomicFile ranges;
    AtomicFile offsets;
  };

  // Writes the targets of the first `count` documents of the piece.
  void append_targets(const EncodedPiece& part, std::int64_t count) {
    if (!targets_) {
      targets_.emplace(folder_);
      put<std::int64_t>(targets_->offsets, {0});
      manifest_.num_targets = 0;
    }
    const std::int64_t first = *manifest_.num_targets;
    std::vector<std::int64_t> ends;
    for (std::int64_t i = 0; i < count; ++i) ends.push_back(*manifest_.num_targets += part.num_targets[i]);
    std::vector<std::int32_t> bounds;
    for (std::int64_t i = 0; i < *manifest_.num_targets - first; ++i) {
      bounds.push_back(static_cast<std::int32_t>(part.targets[i].begin));
      bounds.push_back(static_cast<std::int32_t>(part.targets[i].end));
    }
    put(targets_->offsets, ends);
    put(targets_->ranges, bounds);
    add_to(target_ends_hash_, std::as_bytes(std::span(ends)));
    add_to(targets_hash_, std::as_bytes(std::span(bounds)));
  }

  static void add_to(std::uint64_t& hash, std::span<const std::byte> bytes) {
    hash = fnv1a({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, hash);
  }

  template <class Stored>
  static void put(AtomicFile& file, const std::vector<Stored>& values) {
    file.write(std::as_bytes(std::span(values)));
  }

  std::filesystem::path folder_;
  AtomicFile tokens_;
  AtomicFile offsets_;
  AtomicFile parts_;
  std::optional<Targets> targets_;
  TokenizedManifest manifest_;
  // Hashes of the contents of the files, independent of how the rows were divided into parts.
  std::uint64_t tokens_hash_ = fnv1a(""), ends_hash_ = fnv1a(""), targets_hash_ = fnv1a(""),
                target_ends_hash_ = fnv1a("");
};

}  // namespace

TokenizedManifest tokenize_rows(const TextRows& rows, const TextEncoder& encoder, const TokenizeOptions& options,
                                const std::filesystem::path& folder) {
  const auto dtype = encoder.vocabulary_size() <= 65536 ? TokenDtype::kUint16 : TokenDtype::kUint32;
  AtomicDirectory directory(folder);
  Writer writer(directory.staging(), dtype);
  {
    const std::int64_t num_threads = std::max<std::int64_t>(options.num_threads, 1);
    const std::vector<Piece> pieces = pieces_of(rows);
    OrderedWorkers<EncodedPiece> workers(
        [&](std::int64_t i) {
          return encode_piece(rows, pieces[static_cast<std::size_t>(i)], encoder, options, dtype);
        },
        {.first = 0,
         .end = std::ssize(pieces),
         .num_workers = num_threads,
         .num_ahead = 2 * num_threads,
         .patience = kLongestWait});  // the threads use local variables and arguments
    const auto is_full = [&] { return options.max_rows >= 0 && writer.manifest().num_documents >= options.max_rows; };
    for (const Piece& piece : pieces) {
      if (piece.index == 0 && is_full()) break;
      writer.append(workers.take(), piece.is_last, options.max_rows);
      if (options.on_progress) options.on_progress(piece.part + (piece.is_last ? 1 : 0), writer.manifest().num_tokens);
    }
  }
  const TokenizedManifest& manifest = writer.manifest();
  D9D_CHECK(
      manifest.num_documents > 0, IoError, "[data::tokenize_rows] expected at least one row of text, got none",
      manifest.num_skipped == 0 ? "" : cat(" but ", manifest.num_skipped, " bad ones, first ", manifest.first_skipped),
      ". Check the files and the names of columns.");
  const TokenizedManifest written = writer.finish(rows.fingerprint(), encoder.identity());
  directory.commit();
  return written;
}

}  // namespace d9d
