// What a file is that was given as text or as tokens, by its first bytes: an archive, another format, an encoding.
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

// As many as tell the form of a file. Throws IoError if it cannot be read.
[[nodiscard]] std::string first_bytes(const std::filesystem::path& path);

// By marks that no text and no file of token ids begins with. None for other files.
[[nodiscard]] std::optional<FileForm> foreign_format(std::string_view bytes);

// UTF-16 and UTF-32, with their mark in front or without. None for other text.
[[nodiscard]] std::optional<FileForm> foreign_encoding(std::string_view bytes);

}  // namespace d9d
