// Recognises, by its first bytes, a file that was given as text or token ids but is an archive or has another format or
// encoding.
//
// Example
//   const auto form = foreign_format(first_bytes("ids.bin"));
//   if (form) refuse("ids.bin", form->is, form->remedy);                               // "compressed by gzip"
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace d9d {

struct FileForm {
  std::string_view is;
  std::string_view remedy;
};

// Returns the first bytes of a file, as many as the functions below need. Throws IoError if the file cannot be read.
[[nodiscard]] std::string first_bytes(const std::filesystem::path& path);

// Recognises formats by magic bytes that no text and no file of token ids begins with. nullopt for other files.
[[nodiscard]] std::optional<FileForm> foreign_format(std::string_view bytes);

// Recognises UTF-16, with or without a byte order mark, and UTF-32 with one. nullopt for other text.
[[nodiscard]] std::optional<FileForm> foreign_encoding(std::string_view bytes);

}  // namespace d9d
