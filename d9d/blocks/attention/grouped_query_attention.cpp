#include "d9d/blocks/attention/grouped_query_attention.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/kernels/norm_rotary/norm_rotary.h"

namespace d9d {
namespace {

constexpr std::int64_t kHeads = 2;  // dim of [B, S, H, D]

const GroupedQueryAttentionConfig& checked(const GroupedQueryAttentionConfig& config) {
  D9D_CHECK(config.hidden_size > 0 && config.head_dim > 0 && config.num_key_value_heads > 0, ConfigError,
            "[blocks::attention] expected positive hidden_size, head_dim and num_key_value_heads, got ",
            config.hidden_size, ", ", config.head_dim, " and ", config.num_key_value_heads, ".");
  D9D_CHECK(config.num_attention_heads > 0 && config.num_attention_heads % config.num_key_value_heads == 0, ConfigError,
            "[blocks::attention] expected num_attention_heads to be a multiple of num_key_value_heads = ",
            config.num_key_value_heads, ", got ", config.num_attention_heads, ".");
  const std::int64_t rope_dim = config.rope_dim.value_or(config.head_dim);
  D9D_CHECK(rope_dim >= 0 && rope_dim <= config.head_dim && rope_dim % 2 == 0, ConfigError,
            "[blocks::attention] expected an even rope_dim in [0, head_dim = ", config.head_dim, "], got ", rope_dim,
            ".");
  return config;
}

// What a rank without heads hands to o_proj: columns [B, S, 0], which need a gradient where those of other ranks may,
// since the backward of o_proj's sum over ranks is collective.
at::Tensor without_heads(const at::Tensor& columns, const Module& attention) {
  const auto is_trained = [](const auto& named) { return named.second->requires_grad(); };
  if (columns.requires_grad() || std::ranges::none_of(attention.named_parameters(), is_trained)) return columns;
  return columns.detach().requires_grad_();
}

}  // namespace

GroupedQueryAttention::GroupedQueryAttention(const GroupedQueryAttentionConfig& configuration)
    : config(checked(configuration)),
      q_proj(register_projection("q_proj", config.num_attention_heads)),
      k_proj(register_projection("k_proj", config.num_key_value_heads)),
      v_proj(register_projection("v_proj", config.num_key_value_heads)),
      o_proj(register_module<Linear>("o_proj", LinearConfig{config.num_attention_heads * config.head_dim,
                                                            config.hidden_size, config.has_output_bias})),
      gate_proj(config.has_output_gate ? register_projection("gate_proj", config.num_attention_heads) : nullptr),
      q_norm(config.qk_norm_eps ? register_module<RMSNorm>("q_norm", RMSNormConfig{config.head_dim, *config.qk_norm_eps,
                                                                                   config.qk_norm_zero_centered})
                                : nullptr),
      k_norm(config.qk_norm_eps ? register_module<RMSNorm>("k_norm", RMSNormConfig{config.head_dim, *config.qk_norm_eps,
                                                                                   config.qk_norm_zero_centered})
                                : nullptr),
      kernel(register_module<Sdpa>(
          "kernel",
          SdpaParameters{.num_sinks = config.has_sinks ? std::optional(config.num_attention_heads) : std::nullopt,
                         .window_left = config.window_left,
                         .window_right = config.window_right,
                         .softcap = config.softcap,
                         .needs_attention_mask = config.needs_attention_mask,
                         .backend = config.sdpa_backend})) {}

ModulePtr<Linear> GroupedQueryAttention::register_projection(const std::string& name, std::int64_t num_heads) {
  return register_module<Linear>(
      name, LinearConfig{config.hidden_size, num_heads * config.head_dim, /*has_bias=*/config.has_qkv_bias});
}

std::vector<ModulePtr<Linear>> GroupedQueryAttention::projections() const {
  std::vector<ModulePtr<Linear>> linears = {q_proj, k_proj, v_proj};
  if (gate_proj) linears.push_back(gate_proj);
  return linears;
}

void GroupedQueryAttention::after_materialize(at::Device device) {
  if (device.is_cuda()) join_weights(projections());
}

double GroupedQueryAttention::training_flops(std::int64_t num_positions) const {
  constexpr double kProducts = 3 * 2;  // of queries with keys, of probabilities with values; in backward twice as many
  const double num_keys = static_cast<double>(num_positions) / (config.is_causal ? 2 : 1);
  return 2.0 * kProducts * static_cast<double>(config.num_attention_heads * config.head_dim) * num_keys;
}

std::optional<TensorPlan> GroupedQueryAttention::tensor_plan(std::int64_t num_ranks) const {
  TensorPlan plan{.input = TensorPlan::Edge::kShard,
                  .output = TensorPlan::Edge::kShard,
                  .parameters = {{kernel->sinks, Shard{0}}}};  // one a head
  add_rows(plan, o_proj, config.head_dim);
  add_columns(plan, q_proj, config.head_dim);
  if (gate_proj) add_columns(plan, gate_proj, config.head_dim);
  for (const ModulePtr<Linear>& projection : {k_proj, v_proj}) {
    if (config.num_key_value_heads % num_ranks == 0) {
      add_columns(plan, projection, config.head_dim);
    } else {
      add_whole(plan, projection);
    }
  }
  return plan;
}

void GroupedQueryAttention::set_tensor_parallel_context(TensorParallelContextPtr context) {
  tensor_parallel_ = std::move(context);
  const DeviceMesh ranks = tensor_parallel_->ranks();
  if (config.num_key_value_heads % ranks.num_ranks() == 0) return;
  const std::int64_t group = config.num_attention_heads / config.num_key_value_heads;
  const FlatRange queries = chunk_range(config.num_attention_heads, ranks.index(), ranks.num_ranks());
  const FlatRange keys{.begin = queries.begin / group, .end = divide_up(queries.end, group)};
  for (const ModulePtr<Linear>& projection : {k_proj, v_proj}) {
    projection->compute_only({keys.begin * config.head_dim, keys.end * config.head_dim}, ranks);
  }
  queries_of_keys_.clear();
  for (std::int64_t key = keys.begin; key < keys.end; ++key) {
    queries_of_keys_.push_back(std::min(queries.end, (key + 1) * group) - std::max(queries.begin, key * group));
  }
}

at::Tensor GroupedQueryAttention::shared_evenly(const at::Tensor& heads) const {
  if (std::ranges::adjacent_find(queries_of_keys_, std::not_equal_to()) == queries_of_keys_.end()) return heads;
  std::vector<at::Tensor> copies;
  for (std::size_t key = 0; key < queries_of_keys_.size(); ++key) {
    const at::Tensor head = heads.narrow(kHeads, static_cast<std::int64_t>(key), 1);
    copies.push_back(head.expand({-1, -1, queries_of_keys_[key], -1}));
  }
  return at::cat(copies, kHeads);
}

at::Tensor GroupedQueryAttention::forward(const at::Tensor& hidden_states, const RotaryTables& tables,
                                          const std::optional<at::Tensor>& attention_mask,
                                          const std::optional<PackedSequences>& packed) const {
  D9D_CHECK(!attention_mask || config.needs_attention_mask, ConfigError,
            "[blocks::attention] expected no attention mask, got one. Build the layer with needs_attention_mask.");
  const bool rotates = config.rope_dim != 0;
  D9D_CHECK(!rotates || (tables.cos.defined() && tables.sin.defined()), ConfigError,
            "[blocks::attention] expected rotary tables, got none. Build the layer with rope_dim = 0 to attend without "
            "rotation.");
  D9D_CHECK(!rotates || tables.cos.size(-1) == config.rope_dim.value_or(config.head_dim), ConfigError,
            "[blocks::attention] expected rotary tables of rope_dim = ", config.rope_dim.value_or(config.head_dim),
            " features, got ", tables.cos.size(-1), ". Build them, or the layer, with the same.");
  const std::vector<at::Tensor> projected = tensor_parallel_->column_linears(hidden_states, projections());
  if (projected.front().size(-1) == 0) {
    return tensor_parallel_->row_linear(without_heads(projected.front(), *this), o_proj);
  }
  const auto heads_of = [&](const at::Tensor& columns) { return columns.unflatten(-1, {-1, config.head_dim}); };
  at::Tensor q = heads_of(projected[0]);
  at::Tensor k = heads_of(projected[1]);
  at::Tensor v = heads_of(projected[2]);
  if (rotates && q_norm && q_norm->is_plain() && k_norm->is_plain()) {
    std::tie(q, k, v) = kernels::norm_rotary(
        q, k, v, q_norm->weight->local(), k_norm->weight->local(), tables.cos, tables.sin,
        {.style = config.rope_style, .eps = *config.qk_norm_eps, .zero_centered = config.qk_norm_zero_centered});
  } else {
    if (q_norm) q = q_norm(q);
    if (k_norm) k = k_norm(k);
    if (rotates) std::tie(q, k) = kernels::apply_rotary(q, k, tables.cos, tables.sin, config.rope_style);
  }
  k = shared_evenly(k);
  v = shared_evenly(v);
  at::Tensor out =
      kernel->forward({.query = q, .key = k, .value = v, .mask = attention_mask, .packed = packed},
                      {.causal = config.is_causal, .scale = 1.0 / std::sqrt(static_cast<double>(config.head_dim))});
  out = out.flatten(-2);
  if (gate_proj) out = out * at::sigmoid(projected[3]);
  return tensor_parallel_->row_linear(out, o_proj);
}

}  // namespace d9d
