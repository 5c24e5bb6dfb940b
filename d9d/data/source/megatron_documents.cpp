#include "d9d/data/source/megatron_documents.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "d9d/base/check.h"
#include "d9d/data/text/file_fingerprint.h"

namespace d9d {

namespace {

constexpr std::string_view kMagic{"MMIDIDX\0\0", 9};
constexpr std::int64_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;

template <class Stored>
Stored load(const std::byte* source, std::int64_t index = 0) {
  Stored value;
  std::memcpy(&value, source + index * std::int64_t{sizeof(Stored)}, sizeof(Stored));
  return value;
}

// Converts a code of Megatron's DType; nullopt for floating-point dtypes and unknown codes.
std::optional<TokenDtype> dtype_of_code(std::uint8_t code) {
  switch (code) {
    case 1:
      return TokenDtype::kUint8;
    case 2:
      return TokenDtype::kInt8;
    case 3:
      return TokenDtype::kInt16;
    case 4:
      return TokenDtype::kInt32;
    case 5:
      return TokenDtype::kInt64;
    case 8:
      return TokenDtype::kUint16;
    default:
      return std::nullopt;
  }
}

std::filesystem::path with_end(std::filesystem::path prefix, std::string_view end) {
  if (prefix.extension() == ".bin" || prefix.extension() == ".idx") prefix.replace_extension();
  return prefix += end;
}

}  // namespace

MegatronDocuments::MegatronDocuments(const std::filesystem::path& prefix, std::int64_t vocabulary_size)
    : index_path_(with_end(prefix, ".idx")),
      tokens_path_(with_end(prefix, ".bin")),
      index_(index_path_),
      tokens_(tokens_path_),
      vocabulary_size_(vocabulary_size) {
  read_header();
  check_sequences();
  check_documents();
}

void MegatronDocuments::read_header() {
  const std::span<const std::byte> bytes = index_.bytes();
  const bool has_header =
      std::ssize(bytes) >= kHeaderBytes && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0;
  D9D_CHECK(has_header, IoError, "[data::MegatronDocuments] expected '", index_path_.string(),
            "' to begin with MMIDIDX and counts, got ", bytes.size(),
            " bytes of something else. Check that it is the .idx that belongs to the .bin.");
  const auto version = load<std::uint64_t>(bytes.data() + 9);
  D9D_CHECK(version == 1, IoError, "[data::MegatronDocuments] expected version 1 of the index '", index_path_.string(),
            "', got ", version, ". Write it again with a current Megatron-LM.");
  const auto code = load<std::uint8_t>(bytes.data() + 17);
  const std::optional<TokenDtype> dtype = dtype_of_code(code);
  D9D_CHECK(dtype, IoError, "[data::MegatronDocuments] expected the code of an integer dtype in '",
            index_path_.string(), "' (1, 2, 3, 4, 5 or 8), got ", int{code}, ". Write tokens as integers.");
  dtype_ = *dtype;
  const auto num_sequences = load<std::uint64_t>(bytes.data() + 18);
  const auto num_bounds = load<std::uint64_t>(bytes.data() + 26);
  const std::uint64_t most = bytes.size();  // limits the counts, so that the sum below cannot overflow
  const std::uint64_t expected = kHeaderBytes + std::min(num_sequences, most) * 12 + std::min(num_bounds, most) * 8;
  D9D_CHECK(num_sequences > most || expected + num_sequences != bytes.size() || num_sequences == 0, IoError,
            "[data::MegatronDocuments] expected an index of text, got '", index_path_.string(),
            "', which ends with a mode of each sequence (multimodal). Use its text part.");
  D9D_CHECK(expected == bytes.size() && num_bounds >= 1, IoError, "[data::MegatronDocuments] expected '",
            index_path_.string(), "' to have ", expected, " bytes for ", num_sequences, " sequences and ", num_bounds,
            " document bounds, got ", bytes.size(), ". Copy or write the file again.");
  num_sequences_ = static_cast<std::int64_t>(num_sequences);
  num_documents_ = static_cast<std::int64_t>(num_bounds) - 1;
  lengths_ = bytes.data() + kHeaderBytes;
  pointers_ = lengths_ + num_sequences_ * 4;
  documents_ = pointers_ + num_sequences_ * 8;
}

void MegatronDocuments::check_sequences() const {
  const auto num_bytes = static_cast<std::int64_t>(tokens_.bytes().size());
  const std::int64_t token_bytes = bytes_per_token(dtype_);
  for (std::int64_t sequence = 0; sequence < num_sequences_; ++sequence) {
    const std::int64_t length = length_of_sequence(sequence), pointer = load<std::int64_t>(pointers_, sequence);
    D9D_CHECK(length >= 0 && pointer >= 0 && pointer <= num_bytes && length * token_bytes <= num_bytes - pointer,
              IoError, "[data::MegatronDocuments] expected sequence ", sequence, " of '", index_path_.string(),
              "' to lie within the ", num_bytes, " bytes of '", tokens_path_.string(), "', got ", length,
              " tokens at byte ", pointer, ". Copy or write both files again.");
  }
}

void MegatronDocuments::check_documents() const {
  D9D_CHECK(first_sequence(0) == 0 && first_sequence(num_documents_) == num_sequences_, IoError,
            "[data::MegatronDocuments] expected the documents of '", index_path_.string(), "' to cover sequences 0 to ",
            num_sequences_, ", got ", first_sequence(0), " to ", first_sequence(num_documents_),
            ". Copy or write the file again.");
  for (std::int64_t document = 0; document < num_documents_; ++document) {
    D9D_CHECK(first_sequence(document) <= first_sequence(document + 1), IoError,
              "[data::MegatronDocuments] expected ascending document bounds in '", index_path_.string(), "', got ",
              first_sequence(document), " before ", first_sequence(document + 1), " at document ", document,
              ". Copy or write the file again.");
  }
}

std::int64_t MegatronDocuments::length_of_sequence(std::int64_t sequence) const {
  return load<std::int32_t>(lengths_, sequence);
}

std::int64_t MegatronDocuments::first_sequence(std::int64_t document) const {
  return load<std::int64_t>(documents_, document);
}

std::int64_t MegatronDocuments::length(std::int64_t document) const {
  std::int64_t length = 0;
  for (auto sequence = first_sequence(document); sequence < first_sequence(document + 1); ++sequence) {
    length += length_of_sequence(sequence);
  }
  return length;
}

void MegatronDocuments::read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const {
  const std::span<std::int64_t> all = tokens;
  std::int64_t position = start;  // relative to the sequence; may be after its end
  for (auto sequence = first_sequence(document); !tokens.empty(); ++sequence) {
    D9D_ASSERT(sequence < first_sequence(document + 1), "tokens ", start, "+", all.size(), " of document ", document);
    const std::int64_t length = length_of_sequence(sequence);
    const auto count = std::clamp<std::int64_t>(length - position, 0, std::ssize(tokens));
    const std::int64_t byte = load<std::int64_t>(pointers_, sequence) + position * bytes_per_token(dtype_);
    if (count > 0) read_tokens(tokens_.bytes().data() + byte, dtype_, tokens.first(count));
    tokens = tokens.subspan(count);
    position = std::max<std::int64_t>(position - length, 0);
  }
  const auto bad = first_outside(all, vocabulary_size_);
  D9D_CHECK(!bad, IoError, "[data::MegatronDocuments] expected token ids below vocabulary_size = ", vocabulary_size_,
            ", got ", all[*bad], " at token ", start + *bad, " of ", place(document),
            ". Check which tokenizer wrote the file.");
}

std::string MegatronDocuments::place(std::int64_t document) const {
  return cat("document ", document, " of '", tokens_path_.string(), "'");
}

DocumentsIdentity MegatronDocuments::identity() const {
  return {.tokens = hash_text(content_fingerprint({index_path_, tokens_path_}))};
}

std::string MegatronDocuments::name() const { return cat("'", tokens_path_.string(), "'"); }

}  // namespace d9d
