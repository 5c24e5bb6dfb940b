#include "d9d/base/philox.h"

namespace d9d {
namespace {

// FNV-1a over the bytes: the key depends only on the text.
std::uint64_t hash_text(std::uint64_t hash, std::string_view text) {
  constexpr std::uint64_t kPrime = 0x00000100000001B3;
  for (const char character : text) hash = (hash ^ static_cast<unsigned char>(character)) * kPrime;
  return (hash ^ 0xFFU) * kPrime;  // a separator that no UTF-8 text contains: ("ab", "c") differs from ("a", "bc")
}

}  // namespace

std::uint64_t philox_key(std::uint64_t base_seed, std::string_view purpose, std::string_view name) {
  constexpr std::uint64_t kOffsetBasis = 0xCBF29CE484222325;
  const std::uint64_t text = hash_text(hash_text(kOffsetBasis, purpose), name);
  const PhiloxWords mixed = philox4x32({.low = text, .high = 0}, base_seed);
  return (static_cast<std::uint64_t>(mixed[1]) << 32) | mixed[0];
}

}  // namespace d9d
