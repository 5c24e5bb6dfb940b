#include "d9d/models/decoder/parallelize.h"

#include <algorithm>
#include <iterator>

#include "d9d/base/check.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"
#include "d9d/parallelism/expert/parallelize_expert_parallel.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"
#include "d9d/parallelism/replicate/parallelize_replicate.h"
#include "d9d/parallelism/tensor/parallelize_tensor_parallel.h"

namespace d9d {
namespace {

std::vector<std::shared_ptr<Module>> without_null(std::vector<std::shared_ptr<Module>> modules) {
  std::erase(modules, nullptr);
  return modules;
}

std::string instead_of(std::int64_t degree) {
  return cat("Override it, or set the degree to 1, and mesh.data_parallel_shard to ", degree, ".");
}

// Throws unless a plan has placed each parameter.
void check_tensor_parallel(const Module& module, std::int64_t degree) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    D9D_CHECK(!parameter->mesh().axes().empty(), ConfigError,
              "[models::parallelize_decoder] mesh.tensor_parallel = ", degree, " needs a tensor_plan() that places '",
              name, "'. ", instead_of(degree));
  }
}

// Throws unless the blocks of `module` that have a plan take and give shards of the sequence, which nothing gathers
// between them, and unless all that has no children is part of such a block.
void check_edges(const std::string& name, const Module& module, std::int64_t degree) {
  constexpr auto kShard = TensorPlan::Edge::kShard;
  if (const std::optional<TensorPlan> plan = module.tensor_plan(degree)) {
    D9D_CHECK(plan->input == kShard && plan->output == kShard, ConfigError,
              "[models::parallelize_decoder] expected a block in a layer that takes and gives shards of the positions "
              "(TensorPlan::Edge::kShard) with mesh.tensor_parallel = ",
              degree, ", got whole ones at '", name, "'. Gather them in the block (set_tensor_parallel_context).");
    return;
  }
  const auto children = module.named_children();
  D9D_CHECK(!children.empty(), ConfigError, "[models::parallelize_decoder] mesh.tensor_parallel = ", degree,
            " needs a tensor_plan() of '", name, "', which gets a part of the positions. ", instead_of(degree));
  for (const auto& [child, each] : children) check_edges(cat(name, ".", child), *each, degree);
}

void tensor_parallel(PreNormDecoder& decoder, const std::vector<std::shared_ptr<Module>>& heads,
                     const DeviceMesh& dense, const TensorParallelConfig& config) {
  const std::int64_t degree = dense.axis_size("tp");
  parallelize_tensor_parallel(decoder, dense, "tp", config);
  check_tensor_parallel(decoder, degree);
  for (const auto& [name, layers] : decoder.named_children()) {
    if (name != "layers") continue;
    for (const auto& [index, layer] : layers->named_children()) check_edges(cat(name, ".", index), *layer, degree);
  }
  decoder.set_position_shards(dense.slice({"tp"}));
  for (const auto& head : heads) {
    const std::optional<TensorPlan> plan = head->tensor_plan(degree);
    D9D_CHECK(
        plan && plan->input == TensorPlan::Edge::kShard, ConfigError,
        "[models::parallelize_decoder] mesh.tensor_parallel = ", degree,
        " needs a tensor_plan() of each head that takes shards of the positions (TensorPlan::Edge::kShard), got a "
        "head without one. ",
        instead_of(degree));
    parallelize_tensor_parallel(*head, dense, "tp", config);
    check_tensor_parallel(*head, degree);
  }
}

bool is_tied_head(const std::shared_ptr<Module>& module, const PreNormDecoder& decoder) {
  const auto parameters = module->named_parameters();
  return decoder.embed_tokens && std::ranges::any_of(parameters, [&](const auto& named) {
           return named.second == decoder.embed_tokens->weights.front();
         });
}

void shard(const DistContext& context, PreNormDecoder& decoder, const std::vector<std::shared_ptr<Module>>& heads,
           const FsdpConfig& config) {
  const auto runtime =
      std::make_shared<FsdpRuntime>(resolve_fsdp(config, context.mesh_parameters().pipeline_parallel),
                                    context.is_main_process() ? std::optional(context.log()) : std::nullopt);
  const std::vector<FsdpAxes> axes = {{.mesh = context.mesh(MeshDomain::kDense),
                                       .shard_axis = "dp_cp_shard",
                                       .replicate_axes = {"dp_replicate", "cp_replicate"}},
                                      {.mesh = context.mesh(MeshDomain::kExpert), .shard_axis = "ep_replicate"}};
  std::vector<std::shared_ptr<Module>> last = {decoder.norm.shared()};
  last.insert(last.end(), heads.begin(), heads.end());
  last = without_null(std::move(last));
  // With several stages, the first and the last both have the tied embedding. Each puts it into a unit of its own,
  // apart from adapters, so that both shard it in the same way.
  std::vector<std::shared_ptr<Module>> tied_heads;
  std::vector<ParameterPtr> tied;
  if (decoder.stage().num_stages > 1) {
    if (decoder.ties_word_embeddings()) tied = decoder.embedding_weights();
    const auto is_tied_here = [&](const auto& module) { return is_tied_head(module, decoder); };
    std::ranges::copy_if(last, std::back_inserter(tied_heads), is_tied_here);
    std::erase_if(last, is_tied_here);
  }
  const bool is_tied =
      decoder.ties_word_embeddings() && decoder.stage().is_first() && decoder.stage().is_last() && !last.empty();
  if (is_tied) {
    last.insert(last.begin(), decoder.embed_tokens.shared());
    parallelize_fsdp(runtime, {.name = "embed_tokens and head", .modules = last, .axes = axes, .stays_gathered = true});
  } else if (decoder.stage().is_first()) {
    parallelize_fsdp(runtime,
                     {.name = "embed_tokens", .modules = {decoder.embed_tokens.shared()}, .axes = axes, .apart = tied});
  }
  for (std::size_t i = 0; i < decoder.layers().size(); ++i) {
    const std::int64_t index = decoder.layer_range.begin + static_cast<std::int64_t>(i);
    parallelize_fsdp(runtime, {.name = cat("layers.", index), .modules = {decoder.layers()[i].shared()}, .axes = axes});
  }
  if (!is_tied && !last.empty()) {
    parallelize_fsdp(runtime, {.name = "norm and head", .modules = last, .axes = axes});
  }
  if (!tied_heads.empty()) {
    parallelize_fsdp(runtime, {.name = "embed_tokens", .modules = tied_heads, .axes = axes, .apart = tied});
  }
}

}  // namespace

void parallelize_decoder(const DistContext& context, PreNormDecoder& decoder,
                         const std::vector<std::shared_ptr<Module>>& heads, const FsdpConfig& fsdp,
                         const TensorParallelConfig& tensor, const ContextParallelConfig& of_context) {
  const DeviceMesh& dense = context.mesh(MeshDomain::kDense);
  const DeviceMesh& expert = context.mesh(MeshDomain::kExpert);
  const DeviceMesh ranks = context.mesh(MeshDomain::kBatch).slice({"cp"});
  if (ranks.num_ranks() > 1) {
    const PositionCut positions = context_parallel_cut(ranks);
    parallelize_context_parallel(decoder, positions, of_context);
    decoder.set_context_ranks(positions);
    for (const auto& head : without_null(heads)) parallelize_context_parallel(*head, positions);
  }
  parallelize_expert_parallel(
      decoder, expert,
      {.of_tokens = context.mesh(MeshDomain::kBatch).slice({"dp", "cp", "tp"}), .of_positions = ranks});
  if (dense.axis_size("tp") > 1) tensor_parallel(decoder, without_null(heads), dense, tensor);
  if (dense.axis_size("dp_cp_shard") > 1) {
    shard(context, decoder, heads, fsdp);
    return;
  }
  parallelize_replicate(decoder, dense, dense_data_axes());
  parallelize_replicate(decoder, expert, {"ep_replicate"});  // those that expert parallelism has placed
  for (const auto& head : without_null(heads)) parallelize_replicate(*head, dense, dense_data_axes());
}

}  // namespace d9d
