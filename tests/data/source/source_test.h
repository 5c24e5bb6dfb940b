// Helpers for tests of sources: files in the folder of a test, and documents as vectors.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/data/source/token_documents.h"

#include "tests/support/io_faults.h"

namespace d9d::test {

using Ids = std::vector<std::int64_t>;

class SourceTest : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view bytes) const {
    std::ofstream(folder / name, std::ios::binary) << bytes;
    return folder / name;
  }
  template <class Stored>
  std::string write_tokens(const std::string& name, const std::vector<Stored>& tokens) const {
    return write(name, {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Stored)});
  }

  const std::filesystem::path folder = std::filesystem::canonical(fresh_directory("source"));
};

[[nodiscard]] inline Ids document_of(const TokenDocuments& documents, std::int64_t document) {
  Ids tokens(static_cast<std::size_t>(documents.length(document)));
  documents.read(document, 0, tokens);
  return tokens;
}

[[nodiscard]] inline std::vector<Ids> all_documents(const TokenDocuments& documents) {
  std::vector<Ids> all;
  for (std::int64_t document = 0; document < documents.size(); ++document)
    all.push_back(document_of(documents, document));
  return all;
}

// Documents in memory.
class GivenDocuments final : public TokenDocuments {
 public:
  explicit GivenDocuments(std::vector<Ids> documents) : documents_(std::move(documents)) {}

  [[nodiscard]] std::int64_t size() const override { return std::ssize(documents_); }
  [[nodiscard]] std::int64_t length(std::int64_t document) const override { return std::ssize(documents_[document]); }
  void read(std::int64_t document, std::int64_t start, std::span<std::int64_t> tokens) const override {
    std::ranges::copy_n(documents_[document].begin() + start, std::ssize(tokens), tokens.begin());
  }
  [[nodiscard]] std::string place(std::int64_t document) const override {
    return "document " + std::to_string(document) + " of memory";
  }
  [[nodiscard]] std::string name() const override { return "memory"; }

 private:
  std::vector<Ids> documents_;
};

}  // namespace d9d::test
