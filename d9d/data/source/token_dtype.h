// The integer types in which files store token ids, and functions that read these files.
//
// Example
//   std::vector<std::int64_t> tokens(3);
//   read_tokens(file.bytes().data(), TokenDtype::kUint16, tokens);        // the first six bytes
//   if (const auto bad = first_outside(tokens, vocabulary_size)) refuse(tokens[*bad]);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "d9d/base/enum_names.h"

namespace d9d {

// The stored integer types, all little-endian.
enum class TokenDtype { kUint8, kUint16, kUint32, kInt8, kInt16, kInt32, kInt64 };
constexpr auto enum_names(TokenDtype) {
  return std::to_array<EnumName<TokenDtype>>({{TokenDtype::kUint8, "uint8"},
                                              {TokenDtype::kUint16, "uint16"},
                                              {TokenDtype::kUint32, "uint32"},
                                              {TokenDtype::kInt8, "int8"},
                                              {TokenDtype::kInt16, "int16"},
                                              {TokenDtype::kInt32, "int32"},
                                              {TokenDtype::kInt64, "int64"}});
}

[[nodiscard]] std::int64_t bytes_per_token(TokenDtype dtype);

// Fills `tokens` from `source`, which holds at least tokens.size() tokens and need not be aligned.
void read_tokens(const std::byte* source, TokenDtype dtype, std::span<std::int64_t> tokens);

// Returns the index of the first token that is not in 0..vocabulary_size-1; nullopt if there is none.
[[nodiscard]] std::optional<std::int64_t> first_outside(std::span<const std::int64_t> tokens,
                                                        std::int64_t vocabulary_size);

}  // namespace d9d
