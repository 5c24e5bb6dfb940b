// Routing and the permutation of tokens to rows and back, on a GPU, against compositions of ATen operators. Bytes count
// each tensor once, those with a row per token and those with a row per choice.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "d9d/base/check.h"
#include "d9d/kernels/moe_permute/indices_to_multihot.h"
#include "d9d/kernels/moe_permute/moe_permute.h"
#include "d9d/kernels/moe_permute/moe_permute_impl.h"
#include "d9d/kernels/router/expert_counts.h"
#include "d9d/kernels/router/topk_router.h"
#include "d9d/kernels/silu_mul/silu_mul.h"

#include "benchmarks/device/device_table.h"

namespace d9d::benchmarks {
namespace {

struct Shape {
  std::int64_t num_tokens;
  std::int64_t num_experts;
  std::int64_t top_k;
  std::int64_t hidden;
};

using torch::autograd::grad;

class Layer {
 public:
  Layer(DeviceTable& table, const Shape& shape)
      : table_(table),
        shape_(shape),
        num_rows_(shape.num_tokens * shape.top_k),
        row_bytes_(2.0 * static_cast<double>(num_rows_ * shape.hidden)),
        token_bytes_(2.0 * static_cast<double>(shape.num_tokens * shape.hidden)),
        copies_(num_copies(row_bytes_ + token_bytes_)) {
    for (std::int64_t copy = 0; copy < copies_; ++copy) {
      logits_.push_back(numbers({shape.num_tokens, shape.num_experts}, copy).requires_grad_());
      tokens_.push_back(numbers({shape.num_tokens, shape.hidden}, copy));
      rows_.push_back(numbers({num_rows_, shape.hidden}, copy));
    }
  }

  void measure_routing() {
    const double bytes = static_cast<double>(shape_.num_tokens) *
                         (2.0 * static_cast<double>(shape_.num_experts) + 12.0 * static_cast<double>(shape_.top_k));
    const at::Tensor grad_probs = at::ones({shape_.num_tokens, shape_.top_k}, table_.device());
    row("topk_router fwd", "ours", bytes, [&](std::int64_t copy) { (void)route(logits_[copy].detach()); });
    row("topk_router fwd", "softmax, topk, gather", bytes,
        [&](std::int64_t copy) { (void)route_aten(logits_[copy].detach()); });
    row("topk_router fwd+bwd", "ours", 2 * bytes,
        [&](std::int64_t copy) { (void)grad({route(logits_[copy]).probs}, {logits_[copy]}, {grad_probs}); });
    row("topk_router fwd+bwd", "softmax, topk, gather", 2 * bytes,
        [&](std::int64_t copy) { (void)grad({route_aten(logits_[copy])}, {logits_[copy]}, {grad_probs}); });
    at::Tensor counts = at::zeros({shape_.num_experts}, table_.device().dtype(at::kLong));
    const at::Tensor ids = route(logits_[0].detach()).indices;
    const at::Tensor flat = ids.flatten();
    row("expert counts", "ours", 8.0 * static_cast<double>(num_rows_),
        [&](std::int64_t) { kernels::add_expert_counts_(counts, ids); });
    row("expert counts", "scatter_add", 8.0 * static_cast<double>(num_rows_),
        [&](std::int64_t) { counts.scatter_add_(0, flat, at::ones_like(flat)); });
  }

  void measure_permutation() {
    const at::Tensor ids = route(logits_[0].detach()).indices;
    const kernels::TokenPermutationRequest request{
        .expert_ids = ids, .num_experts = shape_.num_experts, .num_rows = num_rows_};
    const double bytes = 32.0 * static_cast<double>(num_rows_);
    row("token permutation", "ours", bytes, [&](std::int64_t) { (void)kernels::build_token_permutation(request); });
    row("token permutation", "sort", bytes,
        [&](std::int64_t) { (void)kernels::detail::build_token_permutation_aten(request); });
    const at::Tensor probs = at::ones({shape_.num_tokens, shape_.top_k}, table_.device());
    row("indices to multihot", "ours",
        static_cast<double>(num_rows_) * 12.0 + 5.0 * static_cast<double>(shape_.num_tokens * shape_.num_experts),
        [&](std::int64_t) { (void)kernels::indices_to_multihot(ids, probs, shape_.num_experts); });
  }

  void measure_moves() {
    const at::Tensor ids = route(logits_[0].detach()).indices;
    const kernels::TokenPermutation permutation =
        kernels::build_token_permutation({.expert_ids = ids, .num_experts = shape_.num_experts, .num_rows = num_rows_});
    const at::Tensor probs = at::ones({shape_.num_tokens, shape_.top_k}, table_.device()).requires_grad_();
    const at::Tensor row_grads = at::ones({num_rows_}, table_.device());
    const at::Tensor x = at::zeros_like(tokens_[0]).requires_grad_(), y = at::zeros_like(rows_[0]).requires_grad_();
    const double bytes = row_bytes_ + token_bytes_;
    row("permute fwd", "ours", bytes,
        [&](std::int64_t copy) { (void)kernels::permute(tokens_[copy], probs.detach(), permutation); });
    row("permute fwd", "index_select", bytes, [&](std::int64_t copy) {
      (void)tokens_[copy].index_select(0, permutation.row_to_token);
      (void)probs.detach().flatten().index_select(0, permutation.row_to_slot);
    });
    const auto permuted = kernels::permute(x, probs, permutation);
    row("permute bwd", "ours", bytes, [&](std::int64_t copy) {
      (void)grad({permuted.hidden_states, permuted.probs}, {x, probs}, {rows_[copy], row_grads}, /*retain_graph=*/true);
    });
    row("permute bwd", "ATen", bytes, [&](std::int64_t copy) {
      (void)kernels::detail::combine_rows_aten(rows_[copy], permutation.slot_to_row, {});
      (void)kernels::detail::spread_to_slots(row_grads, permutation.slot_to_row);
    });
    row("permute bwd", "index_add", bytes,
        [&](std::int64_t copy) { (void)at::zeros_like(x).index_add_(0, permutation.row_to_token, rows_[copy]); });
    row("unpermute fwd", "ours", bytes, [&](std::int64_t copy) { (void)kernels::unpermute(rows_[copy], permutation); });
    row("unpermute fwd", "ATen", bytes,
        [&](std::int64_t copy) { (void)kernels::detail::combine_rows_aten(rows_[copy], permutation.slot_to_row, {}); });
    const at::Tensor combined = kernels::unpermute(y, permutation);
    row("unpermute bwd", "ours", bytes,
        [&](std::int64_t copy) { (void)grad({combined}, {y}, {tokens_[copy]}, /*retain_graph=*/true); });
    row("unpermute bwd", "index_select", bytes,
        [&](std::int64_t copy) { (void)tokens_[copy].index_select(0, permutation.row_to_token); });
    const at::Tensor merged = kernels::unpermute(y, permutation, probs);
    row("unpermute with probs fwd", "ours", bytes,
        [&](std::int64_t copy) { (void)kernels::unpermute(rows_[copy], permutation, probs.detach()); });
    row("unpermute with probs bwd", "ours", bytes + row_bytes_, [&](std::int64_t copy) {
      (void)grad({merged}, {y, probs}, {tokens_[copy]}, /*retain_graph=*/true);
    });
  }

  // The activation of experts with 768 features, weighted with the probabilities of the rows.
  void measure_activation() {
    constexpr std::int64_t kFeatures = 768;
    const at::Tensor gate = numbers({num_rows_, kFeatures}, 1).requires_grad_(),
                     up = numbers({num_rows_, kFeatures}, 2).requires_grad_();
    const at::Tensor probs = at::ones({num_rows_}, table_.device()).requires_grad_(),
                     grad_out = numbers({num_rows_, kFeatures}, 3);
    const double bytes = 2.0 * static_cast<double>(num_rows_ * kFeatures);
    row("weighted_silu_mul fwd", "ours", 3 * bytes,
        [&](std::int64_t) { (void)kernels::weighted_silu_mul(gate.detach(), up.detach(), probs.detach()); });
    const at::Tensor out = kernels::weighted_silu_mul(gate, up, probs);
    row("weighted_silu_mul bwd", "ours", 5 * bytes, [&](std::int64_t) {
      (void)grad({out}, {gate, up, probs}, {grad_out}, /*retain_graph=*/true);
    });
    const at::Tensor y = rows_[0].detach().requires_grad_();
    row("outputs times probs fwd", "ATen", 2 * row_bytes_,
        [&](std::int64_t copy) { (void)(rows_[copy] * probs.detach().to(at::kBFloat16).unsqueeze(1)); });
    const at::Tensor weighted = y * probs.to(at::kBFloat16).unsqueeze(1);
    row("outputs times probs bwd", "ATen", 3 * row_bytes_, [&](std::int64_t copy) {
      (void)grad({weighted}, {y, probs}, {rows_[copy]}, /*retain_graph=*/true);
    });
  }

  // All parts together, as a layer of a training step runs them: the time that a layer spends outside its experts.
  void measure_layer() {
    const at::Tensor row_grads = at::ones({num_rows_}, table_.device());
    at::Tensor counts = at::zeros({shape_.num_experts}, table_.device().dtype(at::kLong));
    row("routing, permutation, moves, fwd+bwd", "ours", 4 * (row_bytes_ + token_bytes_), [&](std::int64_t copy) {
      const at::Tensor x = tokens_[copy].detach().requires_grad_(), y = rows_[copy].detach().requires_grad_();
      const auto routing = route(logits_[copy]);
      kernels::add_expert_counts_(counts, routing.indices);
      const auto permutation = kernels::build_token_permutation(
          {.expert_ids = routing.indices, .num_experts = shape_.num_experts, .num_rows = num_rows_});
      const auto permuted = kernels::permute(x, routing.probs, permutation);
      const at::Tensor combined = kernels::unpermute(y, permutation);
      (void)grad({combined, permuted.hidden_states, permuted.probs}, {y, x, logits_[copy]},
                 {tokens_[copy], rows_[copy], row_grads});
    });
  }

 private:
  void row(const std::string& operation, const std::string& implementation, double bytes,
           const std::function<void(std::int64_t copy)>& op) {
    table_.measure({.operation = operation,
                    .shape = cat("T", shape_.num_tokens, " E", shape_.num_experts, " top-", shape_.top_k, " h",
                                 shape_.hidden, " bf16"),
                    .implementation = implementation,
                    .bytes = bytes},
                   [&](std::int64_t call) { op(call % copies_); });
  }

  kernels::RoutingResult route(const at::Tensor& logits) const {
    return kernels::topk_router({.logits = logits, .top_k = shape_.top_k, .renormalize = true});
  }

  at::Tensor route_aten(const at::Tensor& logits) const {
    const at::Tensor probs = std::get<0>(at::softmax(logits, 1, at::kFloat).topk(shape_.top_k, 1));
    return probs / probs.sum(1, true);
  }

  at::Tensor numbers(at::IntArrayRef sizes, std::int64_t seed) const {
    return at::arange(c10::multiply_integers(sizes), table_.device().dtype(at::kFloat))
        .add_(static_cast<double>(seed) * 17.3)
        .sin_()
        .mul_(1e3)
        .frac_()
        .to(at::kBFloat16)
        .view(sizes);
  }

  DeviceTable& table_;
  Shape shape_;
  std::int64_t num_rows_;
  double row_bytes_;
  double token_bytes_;
  std::int64_t copies_;
  std::vector<at::Tensor> logits_, tokens_, rows_;
};

void measure(DeviceTable& table) {
  for (const Shape& shape : {Shape{8192, 64, 8, 2048}, Shape{8192, 128, 8, 2048}}) {
    Layer layer(table, shape);
    layer.measure_routing();
    layer.measure_permutation();
    layer.measure_moves();
    layer.measure_activation();
    layer.measure_layer();
  }
}
const bool kAdded = add_device_benchmark("moe_routing", measure);

}  // namespace
}  // namespace d9d::benchmarks
