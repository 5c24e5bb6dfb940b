// Documents of Megatron-LM's indexed datasets: `<prefix>.bin` has the tokens, and `<prefix>.idx` the bounds of
// documents.
//
// Example
//   const MegatronDocuments documents("corpus_text_document", /*vocabulary_size=*/50257);
//   std::vector<std::int64_t> tokens(documents.length(0));
//   documents.read(0, 0, tokens);
//
// The index (version 1, little-endian): "MMIDIDX\0\0", the version (uint64), a code of the dtype (uint8), the numbers
// of sequences and of document bounds (uint64 each), then the length of each sequence in tokens (int32), its first byte
// in the .bin (int64), and the first sequence of each document (int64), with the number of sequences at the end.
// Source: _IndexWriter in megatron/core/datasets/indexed_dataset.py of Megatron-LM, core 0.16.
#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "d9d/base/io/mapped_file.h"
#include "d9d/data/source/token_documents.h"
#include "d9d/data/source/token_dtype.h"

namespace d9d {

class MegatronDocuments final : public TokenDocuments {
 public:
  // `prefix`: the path of both files without the extension; the path of either file is accepted too. Files are
  // memory-mapped, and the index is read once. Throws IoError that names the file and the problem: it is not such an
  // index, it has another version, floating-point values or multimodal data; it is shorter or longer than its counts
  // say; or a document or sequence lies outside the .bin.
  MegatronDocuments(const std::filesystem::path& prefix, std::int64_t vocabulary_size);

  [[nodiscard]] std::int64_t size() const override { return num_documents_; }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override;
  void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const override;
  [[nodiscard]] std::string place(std::int64_t document) const override;
  [[nodiscard]] std::string name() const override;
  [[nodiscard]] DocumentsIdentity identity() const override;

 private:
  void read_header();
  void check_sequences() const;
  void check_documents() const;
  [[nodiscard]] std::int64_t length_of_sequence(std::int64_t sequence) const;
  [[nodiscard]] std::int64_t first_sequence(std::int64_t document) const;

  std::filesystem::path index_path_;
  std::filesystem::path tokens_path_;
  MappedFile index_;
  MappedFile tokens_;
  std::int64_t vocabulary_size_;
  TokenDtype dtype_ = TokenDtype::kUint16;
  // Arrays in the index, which are not aligned: read them with the functions above.
  std::int64_t num_sequences_ = 0;
  std::int64_t num_documents_ = 0;
  const std::byte* lengths_ = nullptr;    // int32, by sequence, in tokens
  const std::byte* pointers_ = nullptr;   // int64, by sequence, in bytes
  const std::byte* documents_ = nullptr;  // int64, the first sequence of each document; then the number of sequences
};

}  // namespace d9d
