// Random tensors addressed by global element: the value of an element depends only on (key, step, its index in the
// whole tensor), not on sharding, on the device or on how many numbers were drawn before.
//
// Example
//   const ElementWindow window{.global_shape = {1024, 512}, .start = {256, 0}};   // rows 256.. of a sharded weight
//   fill_uniform(local, window, {.key = philox_key(seed, "init", "layers.0.mlp.up_proj.weight")}, -0.1, 0.1);
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/rng/random_stream.h"

namespace d9d {

// The position of a local tensor in its global tensor: local element [i, j, ...] is global element [start0 + i,
// start1 + j, ...].
struct ElementWindow {
  std::vector<std::int64_t> global_shape;
  std::vector<std::int64_t> start;  // one entry for each dim of global_shape
};

// Returns the window of a tensor that is not sharded.
[[nodiscard]] ElementWindow whole_window(const at::Tensor& tensor);

// Fills `local` (any floating dtype, CPU or CUDA) in place. Each element is computed in double and rounded once, so a
// float32 model starts from the rounded values of a float64 one.
void fill_uniform(const at::Tensor& local, const ElementWindow& window, RandomStream stream, double low, double high);
void fill_normal(const at::Tensor& local, const ElementWindow& window, RandomStream stream, double mean, double std);

// A boolean mask, true with probability `keep_probability`.
void fill_bernoulli(const at::Tensor& local, const ElementWindow& window, RandomStream stream, double keep_probability);

}  // namespace d9d
