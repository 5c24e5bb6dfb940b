// Generates the same numbers as Python's `random` module, to reproduce orders that the reference implementation draws
// with that module.
//
// Example
//   PythonRandom random(42);
//   const double u = random.uniform();                    // random.Random(42).random()
//   random.shuffle(std::span(order));                     // the same order as Python's shuffle
//
// It is the 32-bit Mersenne Twister MT19937, seeded by its array initialisation with the seed in 32-bit words, lowest
// first. Source: M. Matsumoto, T. Nishimura, "Mersenne Twister", ACM TOMACS 8, 1998; the rules of Python's random
// module.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <utility>

namespace d9d {

class PythonRandom {
 public:
  explicit PythonRandom(std::uint64_t seed);

  // Returns a uniform number in [0, 1), with 53 random bits.
  [[nodiscard]] double uniform();
  // Returns a uniform integer in 0..bound-1; expects 1 <= bound < 2^32.
  [[nodiscard]] std::uint64_t below(std::uint64_t bound);

  template <class T>
  void shuffle(std::span<T> items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  std::mt19937 twister_;
};

}  // namespace d9d
