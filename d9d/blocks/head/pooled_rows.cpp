#include "d9d/blocks/head/pooled_rows.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/blocks/regularization/dropout.h"
#include "d9d/core/collectives/differentiable.h"

namespace d9d {
namespace {

struct Selection {
  at::Tensor positions;            // [n] int64, of the flattened mask
  std::optional<at::Tensor> fits;  // [n] bool: the mask selects as many positions as were announced; none: it does
};

// The positions where `selected` ([N] bool) is true, of which n are expected.
Selection counted_positions(const at::Tensor& selected, std::int64_t n) {
  if (selected.is_cpu()) {
    const auto found = selected.sum().item<std::int64_t>();
    D9D_CHECK(found == n, ConfigError, "[blocks::pooled_rows] expected a pooling mask that selects num_positions = ", n,
              " positions, got ", found, ". Count again, or leave num_positions out.");
  }
  const std::int64_t none = selected.size(0);
  // Asks for n + 1 to detect an excess.
  const at::Tensor numbers = at::nonzero_static(selected, n + 1, /*fill_value=*/none).squeeze(1);
  return {.positions = numbers.narrow(0, 0, n).clamp_max(none - 1),
          .fits = numbers.slice(0, 0, n).lt(none).logical_and(numbers.slice(0, n).eq(none))};
}

Selection selection_of(const at::Tensor& mask, const std::optional<std::int64_t>& num_positions) {
  const at::Tensor selected = mask.eq(1).reshape({-1});
  if (num_positions) return counted_positions(selected, *num_positions);
  return {.positions = selected.nonzero().squeeze(1), .fits = std::nullopt};
}

// `positions` of B * S ones, which this rank has in a shard of `length` for each of the B: as those of its shard.
PooledRows rows_of_shard(const at::Tensor& hidden_states, const at::Tensor& positions, const DeviceMesh& shards) {
  const std::int64_t length = hidden_states.size(1), sequence = length * shards.num_ranks();
  const at::Tensor column = positions.remainder(sequence);
  const at::Tensor here = positions.floor_divide(sequence) * length + column.remainder(length);
  return {.rows = hidden_states.flatten(0, 1).index_select(0, here),
          .is_here = column.floor_divide(length).eq(shards.index()),
          .shards = shards};
}

}  // namespace

at::Tensor PooledRows::whole(const at::Tensor& outputs) const {
  if (!is_here) return outputs;
  return all_reduce_forward(at::where(is_here->unsqueeze(-1), outputs, 0), shards.lane_communicator());
}

PooledRows pooled_rows(const at::Tensor& hidden_states, const PoolingShared& shared, const DeviceMesh& shards) {
  const std::int64_t num_shards = shards.num_ranks();
  const std::vector<std::int64_t> sizes = {hidden_states.size(0), hidden_states.size(1) * num_shards};
  if (!shared.pooling_mask) {
    if (num_shards == 1) return {.rows = hidden_states};
    const at::Tensor all = at::arange(sizes[0] * sizes[1], hidden_states.options().dtype(at::kLong));
    PooledRows pooled = rows_of_shard(hidden_states, all, shards);
    pooled.rows = pooled.rows.unflatten(0, sizes);
    pooled.is_here = pooled.is_here->unflatten(0, sizes);
    return pooled;
  }
  D9D_CHECK(shared.pooling_mask->sizes() == at::IntArrayRef(sizes), ConfigError,
            "[blocks::pooled_rows] expected a pooling mask of all positions, ", at::IntArrayRef(sizes), ", got ",
            shared.pooling_mask->sizes(), ".");
  const Selection selection = selection_of(*shared.pooling_mask, shared.num_positions);
  PooledRows pooled = num_shards == 1
                          ? PooledRows{.rows = hidden_states.flatten(0, 1).index_select(0, selection.positions)}
                          : rows_of_shard(hidden_states, selection.positions, shards);
  if (selection.fits) pooled.rows = at::where(selection.fits->unsqueeze(1), pooled.rows, std::nan(""));
  return pooled;
}

TensorPlan plan_of_rows(const Module& head) {
  TensorPlan plan{.input = TensorPlan::Edge::kShard, .output = TensorPlan::Edge::kWhole};
  for (const auto& [name, parameter] : head.named_parameters()) plan.parameters.push_back({parameter, Replicate{}});
  return plan;
}

void share_rows(Module& head, const DeviceMesh& shards) {
  head.for_each_module([&](const std::string&, Module& each) {
    if (auto* const dropout = dynamic_cast<Dropout*>(&each)) dropout->add_cut({.ranks = shards});
  });
}

}  // namespace d9d
