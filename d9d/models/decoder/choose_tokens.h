// The choice of the next token from a model's logits: the likeliest one, or one drawn from a distribution.
//
// Example
//   const at::Tensor ids = choose_tokens(logits, {.temperature = 0.7, .top_k = 50, .top_p = 0.95}, draws);
//
// Legend   N sequences, V vocabulary size
#pragma once

#include <cstdint>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace d9d {

// The order of the three is that of transformers: logits are divided by the temperature, then the k likeliest tokens
// are kept, then of these the fewest that have together at least probability p (Holtzman et al., arXiv:1904.09751).
struct TokenChoice {
  double temperature = 0.0;  // 0: always the likeliest token, the first of equal ones, without the other two
  std::int64_t top_k = 0;    // 0: all
  double top_p = 1.0;        // 1: all
};

// Throws ConfigError, naming `caller`, for values out of range.
void check_token_choice(const TokenChoice& choice, std::string_view caller);

// Local. The probabilities from which tokens are drawn, [N, V] double, of logits [N, V]. On the CPU under deterministic
// algorithms, because cumsum has no deterministic kernel on GPUs. The temperature must not be 0. Of a row whose largest
// logit is not finite they are NaN.
[[nodiscard]] at::Tensor token_probabilities(const at::Tensor& logits, const TokenChoice& choice);

// Local. Returns one id for each row of logits [N, V], [N] int64 on their device. draws [N] double in [0, 1) on the
// CPU: where in the cumulative distribution a token is taken; unused if the temperature is 0. Of a row whose largest
// logit is not finite it is any id.
[[nodiscard]] at::Tensor choose_tokens(const at::Tensor& logits, const TokenChoice& choice, const at::Tensor& draws);

}  // namespace d9d
