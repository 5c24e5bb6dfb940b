#include "d9d/blocks/head/pooled_rows.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

// The rows of `flat` where `selected` ([N] bool) is true, of which n are expected.
at::Tensor counted_rows(const at::Tensor& flat, const at::Tensor& selected, std::int64_t n) {
  if (selected.is_cpu()) {
    const auto found = selected.sum().item<std::int64_t>();
    D9D_CHECK(found == n, ConfigError, "[blocks::pooled_rows] expected a pooling mask that selects num_positions = ", n,
              " positions, got ", found, ". Count again, or leave num_positions out.");
  }
  const std::int64_t none = selected.size(0);
  // Asks for n + 1 to detect an excess.
  const at::Tensor numbers = at::nonzero_static(selected, n + 1, /*fill_value=*/none).squeeze(1);
  const at::Tensor rows = flat.index_select(0, numbers.narrow(0, 0, n).clamp_max(none - 1));
  const at::Tensor fits = numbers.slice(0, 0, n).lt(none).logical_and(numbers.slice(0, n).eq(none));
  return at::where(fits.unsqueeze(1), rows, std::nan(""));
}

}  // namespace

at::Tensor pooled_rows(const at::Tensor& hidden_states, const PoolingShared& shared) {
  if (!shared.pooling_mask) return hidden_states;
  const at::Tensor flat = hidden_states.reshape({-1, hidden_states.size(-1)});
  const at::Tensor selected = shared.pooling_mask->eq(1).reshape({-1});
  if (shared.num_positions) return counted_rows(flat, selected, *shared.num_positions);
  return flat.index_select(0, selected.nonzero().squeeze(1));
}

}  // namespace d9d
