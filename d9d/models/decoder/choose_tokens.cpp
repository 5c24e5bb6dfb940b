#include "d9d/models/decoder/choose_tokens.h"

#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Context.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

void check_token_choice(const TokenChoice& choice, std::string_view caller) {
  D9D_CHECK(std::isfinite(choice.temperature) && choice.temperature >= 0, ConfigError, "[", caller,
            "] expected a temperature of 0 or above, got ", choice.temperature, ". Take 0 for the likeliest token.");
  D9D_CHECK(choice.top_k >= 0, ConfigError, "[", caller, "] expected a top_k of 0 or above, got ", choice.top_k,
            ". Take 0 for all tokens.");
  D9D_CHECK(choice.top_p > 0 && choice.top_p <= 1, ConfigError, "[", caller, "] expected a top_p in (0, 1], got ",
            choice.top_p, ". Take 1 for all tokens.");
  D9D_CHECK(
      choice.temperature > 0 || (choice.top_k == 0 && choice.top_p == 1), ConfigError, "[", caller,
      "] expected a temperature above 0 with top_k or top_p, which draw, got 0: always the likeliest token. Set the "
      "temperature.");
}

at::Tensor token_probabilities(const at::Tensor& logits, const TokenChoice& choice) {
  const bool has_cumsum = !logits.is_cuda() || !at::globalContext().deterministicAlgorithms();
  at::Tensor scores = (has_cumsum ? logits : logits.cpu()).to(at::kDouble);
  scores =
      (scores - scores.amax(-1, /*keepdim=*/true)) / choice.temperature;  // so that no quotient is infinite but -inf
  if (choice.top_k > 0 && choice.top_k < scores.size(-1)) {
    const at::Tensor least = std::get<0>(scores.topk(choice.top_k)).narrow(-1, choice.top_k - 1, 1);
    scores = scores.masked_fill(scores < least, kMinusInfinity);
  }
  if (choice.top_p < 1) {
    const auto [sorted, order] = scores.sort(/*stable=*/true, -1, /*descending=*/true);
    const at::Tensor probabilities = at::softmax(sorted, -1);
    const at::Tensor before = probabilities.cumsum(-1) - probabilities;  // of all likelier tokens
    const at::Tensor dropped = before >= choice.top_p;
    scores = scores.masked_fill(at::empty_like(dropped).scatter_(-1, order, dropped), kMinusInfinity);
  }
  return at::softmax(scores, -1);
}

at::Tensor choose_tokens(const at::Tensor& logits, const TokenChoice& choice, const at::Tensor& draws) {
  if (choice.temperature == 0) return logits.argmax(-1);
  const at::Tensor cumulative = token_probabilities(logits, choice).cumsum(-1);
  const at::Tensor total = cumulative.narrow(-1, cumulative.size(-1) - 1, 1);
  // Below the total, so that the first sum above it is that of a token with a probability.
  const at::Tensor below = at::nextafter(total, at::zeros_like(total));
  const at::Tensor points = at::minimum(draws.to(cumulative.device()).unsqueeze(-1) * total, below);
  const at::Tensor ids = at::searchsorted(cumulative, points, /*out_int32=*/false, /*right=*/true).squeeze(-1);
  return ids.clamp_max(logits.size(-1) - 1).to(logits.device());
}

}  // namespace d9d
