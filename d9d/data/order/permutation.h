// A pseudo-random permutation of 0..size-1 that is computed element by element, without a table. It is the same on
// every machine and for every reader, whatever position a reader starts from.
//
// Example
//   const Permutation order(dataset.size(), {.seed = 1337, .epoch = 0});
//   const Sample first = dataset.get(order(0));
//
// It is a balanced Feistel network with the round function Philox4x32-10. The network permutes 0..4^k-1, for the
// smallest 4^k >= size; a result >= size is permuted again until it is below size ("cycle walking", fewer than four
// evaluations on average). Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
#pragma once

#include <cstdint>

namespace d9d {

struct ShuffleKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
};

class Permutation {
 public:
  // Throws ConfigError unless size >= 1.
  Permutation(std::int64_t size, ShuffleKey key);

  // Expects 0 <= index < size(). Constant time and memory; thread-safe.
  [[nodiscard]] std::int64_t operator()(std::int64_t index) const;
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  [[nodiscard]] std::uint64_t encrypt(std::uint64_t block) const;

  std::int64_t size_;
  std::uint64_t key_;
  int half_bits_;  // a block is two halves of this many bits
};

}  // namespace d9d
