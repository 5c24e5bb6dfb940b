#include "d9d/core/dtensor/redistribute.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/redistribute_steps.h"

namespace d9d {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool is_partial(const Placement& placement) { return std::holds_alternative<Partial>(placement); }
bool is_average(const Placement& placement) { return placement == Placement(Partial{ReduceOp::kAvg}); }
bool is_linear(const Placement& placement) {
  return !is_partial(placement) || is_average(placement) || placement == Placement(Partial{ReduceOp::kSum});
}

// Checks placements of a tensor of this shape: one for each axis, dims in range, consistent flat shards, one kind of
// reduction. The result is the same on all ranks.
void check_placements(const std::vector<std::int64_t>& global_shape, const DeviceMesh& mesh,
                      const Placements& placements) {
  const std::vector<std::int64_t> first(mesh.axes().size());  // the rank with the largest box
  const LocalBox box = local_box(global_shape, mesh, placements, first);
  const FlatShard* flat = nullptr;
  std::int64_t num_parts = 1;
  const Placement* reduction = nullptr;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    if (const FlatShard* const here = std::get_if<FlatShard>(&placements[i])) {
      D9D_CHECK(flat == nullptr || *flat == *here, ConfigError,
                "[core::redistribute] expected the same flat shard on all axes that have one, got ", to_string(*flat),
                " and ", to_string(*here), ".");
      flat = here;
      num_parts *= mesh.axes()[i].size;
    }
    if (!is_partial(placements[i])) continue;
    const bool is_alike =
        reduction == nullptr || *reduction == placements[i] || (is_linear(*reduction) && is_linear(placements[i]));
    D9D_CHECK(is_alike, ConfigError,
              "[core::redistribute] expected one kind of reduction (sum and avg, max, or min) over the axes of mesh '",
              mesh.name(), "', got ", to_string(*reduction), " and ", to_string(placements[i]),
              ": their order would matter. Redistribute one of them to replicate first.");
    reduction = &placements[i];
  }
  D9D_CHECK(flat == nullptr || (flat->padded_numel % num_parts == 0 && flat->offset_in_unit >= 0 &&
                                flat->offset_in_unit + box.numel() <= flat->padded_numel),
            ConfigError, "[core::redistribute] expected a flat shard whose group has room for ", box.numel(),
            " elements and divides by ", num_parts, " ranks, got ", to_string(Placement(*flat)), ".");
}

void check_local(const DTensor& x) {
  const std::vector<std::int64_t> expected = local_shape(x.global_shape, x.mesh, x.placements);
  D9D_CHECK(x.local.sizes() == expected, StateError, "[core::redistribute] expected a local tensor of shape ",
            at::IntArrayRef(expected), " for global shape ", at::IntArrayRef(x.global_shape), " over mesh '",
            x.mesh.name(), "', got ", x.local.sizes(), ".");
}

Placements with_replicate_for_partial(Placements placements) {
  std::ranges::replace_if(placements, is_partial, Placement(Replicate{}));
  return placements;
}

// A tensor during a change of layout.
struct Route {
  const std::vector<std::int64_t>& shape;
  const DeviceMesh& mesh;
  at::Tensor local;
  Placements now;

  void move_to(const Placements& next) {
    local = move_elements(local, shape, mesh, now, next);
    now = next;
  }

  void reduce_to(const std::vector<std::size_t>& axes, const Placements& next, ReduceOp op) {
    if (axes.empty()) return;
    local = reduce_elements(local, shape, mesh, now, next, axes, op);
    now = next;
  }

  // Reduces the Partial axes whose placement differs in `to`. If the rank's part in `to` lies within the elements that
  // it holds, a reduce-scatter yields this part directly, and only 1 / ranks of the data remains to be moved; other
  // axes become Replicate.
  void reduce(const Placements& to, ReduceOp op) {
    std::vector<std::size_t> scattered;
    std::vector<std::size_t> reduced;
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (now[i] != Placement(Partial{op}) || now[i] == to[i]) continue;
      const bool is_cut = !is_partial(to[i]) && to[i] != Placement(Replicate{});
      if (mesh.axes()[i].size > 1) {
        (is_cut ? scattered : reduced).push_back(i);
      } else {
        now[i] = Replicate{};
      }
    }
    Placements next = now;
    for (const std::size_t i : scattered) next[i] = to[i];
    // Axes of one rank take their placement in `to`, since a flat shard left there would not fit the flat shards of
    // `to`.
    for (std::size_t i = 0; i < next.size(); ++i) {
      if (mesh.axes()[i].size == 1) next[i] = is_partial(to[i]) ? Placement(Replicate{}) : to[i];
    }
    if (!travel_axes(mesh, now, next).empty()) {  // these axes would split a part that another axis has already split
      reduced.insert(reduced.end(), scattered.begin(), scattered.end());
      std::ranges::sort(reduced);
      scattered.clear();
    }
    reduce_to(scattered, next, op);
    next = now;  // a second operation reduces the other axes
    for (const std::size_t i : reduced) next[i] = Replicate{};
    reduce_to(reduced, next, op);
  }

  void become_partial(const Placements& to) {
    bool is_mine = true;
    for (std::size_t i = 0; i < now.size(); ++i) {
      is_mine = is_mine && (now[i] == to[i] || to[i] != Placement(Partial{}) || mesh.coordinate()[i] == 0);
    }
    if (!is_mine) local = at::zeros_like(local, at::MemoryFormat::Contiguous);
    now = to;
  }
};

at::Tensor route(const at::Tensor& local, const std::vector<std::int64_t>& shape, const DeviceMesh& mesh,
                 const Placements& from, const Placements& to) {
  const at::NoGradGuard no_grad;
  Route way{.shape = shape, .mesh = mesh, .local = local, .now = from};
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax, ReduceOp::kMin}) way.reduce(to, op);
  Placements moved = to;  // axes that become Partial are Replicate first; axes that are still Partial stay so
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (is_partial(to[i])) moved[i] = is_partial(way.now[i]) ? way.now[i] : Placement(Replicate{});
  }
  way.move_to(moved);
  way.become_partial(to);
  return way.local;
}

// Everything that backward needs. It holds no tensors, so it keeps none alive.
struct Crossing final : torch::CustomClassHolder {
  std::vector<std::int64_t> global_shape;
  DeviceMesh mesh;
  Placements from;
  Placements to;
  Placements arriving;  // layout of the result's gradient
  Placements leaving;   // layout of the input's gradient
  double scale = 1.0;   // factor on the gradient: each rank's part of an average counts 1 / ranks
};

struct Redistribute : torch::autograd::Function<Redistribute> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& local,
                            const c10::intrusive_ptr<Crossing>& crossing) {
    context->saved_data["crossing"] = c10::IValue::make_capsule(crossing);
    return route(local, crossing->global_shape, crossing->mesh, crossing->from, crossing->to);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    D9D_CHECK(!at::GradMode::is_enabled(), UsageError,
              "[core::redistribute] expected a first-order backward, got one with create_graph. Gradients of gradients "
              "are not built.");
    const auto crossing = c10::static_intrusive_pointer_cast<Crossing>(context->saved_data["crossing"].toCapsule());
    at::Tensor grad =
        route(grads.front(), crossing->global_shape, crossing->mesh, crossing->arriving, crossing->leaving);
    if (crossing->scale != 1.0) grad = grad * crossing->scale;
    return {grad, at::Tensor()};
  }
};

// Throws unless the gradient is sharded in the same way as its tensor.
void check_gradient_placements(const char* whose, const Placements& placements, const Placements& gradient) {
  D9D_CHECK(gradient.size() == placements.size(), ConfigError,
            "[core::redistribute] expected one placement an axis for the gradient of the ", whose, ", got ",
            gradient.size(), " for ", placements.size(), " axes.");
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const bool is_whole = is_partial(placements[i]) || placements[i] == Placement(Replicate{});
    const bool fits = is_whole ? gradient[i] == Placement(Replicate{}) || gradient[i] == Placement(Partial{})
                               : gradient[i] == placements[i];
    D9D_CHECK(fits, ConfigError, "[core::redistribute] expected the gradient of the ", whose, ", which is ",
              to_string(placements[i]), " on axis ", i, ", to be ",
              is_whole ? "replicate or partial(sum)" : "the same there", ", got ", to_string(gradient[i]), ".");
    D9D_CHECK(is_linear(placements[i]), ConfigError, "[core::redistribute] ", to_string(placements[i]), " on axis ", i,
              " has no gradient here. Pass detached tensors.");
  }
}

}  // namespace

DTensor distribute(const at::Tensor& full, const DeviceMesh& mesh, const Placements& placements) {
  const std::vector<std::int64_t> shape = full.sizes().vec();
  check_placements(shape, mesh, placements);
  return {.local = route(full.detach(), shape, mesh, Placements(placements.size(), Replicate{}), placements),
          .mesh = mesh,
          .placements = placements,
          .global_shape = shape};
}

DTensor redistribute(const DTensor& x, const Placements& placements, const RedistributeOptions& options) {
  check_placements(x.global_shape, x.mesh, x.placements);
  check_placements(x.global_shape, x.mesh, placements);
  check_local(x);
  DTensor result = {.mesh = x.mesh, .placements = placements, .global_shape = x.global_shape};
  if (!x.local.requires_grad() || !at::GradMode::is_enabled()) {
    result.local = route(x.local, x.global_shape, x.mesh, x.placements, placements);
    return result;
  }
  const auto crossing = c10::make_intrusive<Crossing>();
  crossing->global_shape = x.global_shape;
  crossing->mesh = x.mesh;
  crossing->from = x.placements;
  crossing->to = placements;
  crossing->arriving = options.gradient_placements.value_or(with_replicate_for_partial(placements));
  crossing->leaving = options.input_gradient_placements.value_or(with_replicate_for_partial(x.placements));
  check_gradient_placements("result", placements, crossing->arriving);
  check_gradient_placements("input", x.placements, crossing->leaving);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    const auto ranks = static_cast<double>(x.mesh.axes()[i].size);
    if (is_average(placements[i])) crossing->scale *= ranks;
    if (is_average(x.placements[i])) crossing->scale /= ranks;
  }
  result.local = Redistribute::apply(x.local, crossing);
  return result;
}

at::Tensor full_tensor(const DTensor& x, const RedistributeOptions& options) {
  return redistribute(x, Placements(x.placements.size(), Replicate{}), options).local;
}

}  // namespace d9d
