// The permutation of numpy.random.default_rng(seed).permutation(size), which Dataset.shuffle(seed) of Hugging Face's
// datasets applies to rows.
//
// Example
//   const std::vector<std::int64_t> rows = numpy_permutation(100000, 42);     // row i of the shuffled data is rows[i]
//
// Source: M. O'Neill, "PCG: a family of simple fast space-efficient statistically good algorithms", 2014 (XSL-RR on 128
// bits); the rules of numpy's SeedSequence and Generator.
#pragma once

#include <cstdint>
#include <vector>

namespace d9d {

// Returns the permutation as a table of 8 bytes per element. Throws ConfigError unless 0 <= size < 2^32 - 1.
[[nodiscard]] std::vector<std::int64_t> numpy_permutation(std::int64_t size, std::uint64_t seed);

}  // namespace d9d
