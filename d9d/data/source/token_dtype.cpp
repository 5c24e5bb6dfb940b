#include "d9d/data/source/token_dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "d9d/base/check.h"

namespace d9d {

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

constexpr std::size_t kBlock = 32;  // tokens; -O2 vectorises only loops of a known length

// Returns visit(Stored{}), where Stored is the C++ type of `dtype`.
template <class Visit>
auto with_stored(TokenDtype dtype, Visit visit) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return visit(std::uint8_t{});
    case TokenDtype::kUint16:
      return visit(std::uint16_t{});
    case TokenDtype::kUint32:
      return visit(std::uint32_t{});
    case TokenDtype::kInt8:
      return visit(std::int8_t{});
    case TokenDtype::kInt16:
      return visit(std::int16_t{});
    case TokenDtype::kInt32:
      return visit(std::int32_t{});
    case TokenDtype::kInt64:
      return visit(std::int64_t{});
  }
  D9D_ASSERT(false, "token dtype ", static_cast<int>(dtype));
}

}  // namespace

std::int64_t bytes_per_token(TokenDtype dtype) {
  return with_stored(dtype, [](auto stored) { return static_cast<std::int64_t>(sizeof(stored)); });
}

void read_tokens(const std::byte* source, TokenDtype dtype, std::span<std::int64_t> tokens) {
  with_stored(dtype, [&](auto stored) {
    std::array<decltype(stored), kBlock> block;
    for (; tokens.size() >= kBlock; tokens = tokens.subspan(kBlock), source += sizeof(block)) {
      std::memcpy(block.data(), source, sizeof(block));
      for (std::size_t i = 0; i < kBlock; ++i) tokens[i] = block[i];
    }
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      std::memcpy(&stored, source + i * sizeof(stored), sizeof(stored));
      tokens[i] = stored;
    }
  });
}

std::optional<std::int64_t> first_outside(std::span<const std::int64_t> tokens, std::int64_t vocabulary_size) {
  const auto last = static_cast<std::uint64_t>(vocabulary_size - 1);
  const auto sign = [last](std::int64_t token) {  // the highest bit is set if the token is outside the vocabulary
    const auto id = static_cast<std::uint64_t>(token);
    return id | (last - id);
  };
  std::uint64_t signs = 0;
  auto rest = tokens;
  for (; rest.size() >= kBlock; rest = rest.subspan(kBlock)) {
    for (std::size_t i = 0; i < kBlock; ++i) signs |= sign(rest[i]);
  }
  for (const std::int64_t token : rest) signs |= sign(token);
  const auto is_outside = [](std::uint64_t bits) { return static_cast<std::int64_t>(bits) < 0; };
  if (!is_outside(signs)) return std::nullopt;
  return std::ranges::find_if(tokens, [&](std::int64_t token) { return is_outside(sign(token)); }) - tokens.begin();
}

}  // namespace d9d
