// The layout of a model: the library's default, or composed by hand from its parts.
#include "d9d/models/decoder/parallelize.h"

#include "d9d/base/check.h"
#include "d9d/blocks/moe/moe_layer.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"
#include "d9d/parallelism/expert/parallelize_expert_parallel.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"
#include "d9d/parallelism/replicate/parallelize_replicate.h"

#include "tests/layout/layout_model.h"
#include "tests/layout/own_layer.h"

namespace d9d::test {
namespace {

void parallelize_experts(const DistContext& context, PreNormDecoder& decoder, const DeviceMesh& positions) {
  const DeviceMesh& expert = context.mesh(MeshDomain::kExpert);
  decoder.for_each_module([&](const std::string&, Module& each) {
    auto* const layer = dynamic_cast<MoELayer*>(&each);
    if (layer == nullptr) return;
    layer->set_count_ranks(
        {.of_tokens = context.mesh(MeshDomain::kBatch).slice({"dp", "cp"}), .of_positions = positions});
    if (expert.axis_size("ep_shard") > 1) parallelize_expert_parallel(*layer, expert);
  });
}

void shard_layers(const DistContext& context, const LayoutModel& model, const Layout& layout) {
  const auto runtime = std::make_shared<FsdpRuntime>(layout.fsdp);
  const std::vector<FsdpAxes> axes = {{.mesh = context.mesh(MeshDomain::kDense),
                                       .shard_axis = "dp_cp_shard",
                                       .replicate_axes = {"dp_replicate", "cp_replicate"}},
                                      {.mesh = context.mesh(MeshDomain::kExpert), .shard_axis = "ep_replicate"}};
  const auto& layers = model.backbone->layers();
  const std::size_t layers_of_unit = layout.composition == Composition::kGroupsByHand ? 2 : 1;
  for (std::size_t first = 0; first < layers.size(); first += layers_of_unit) {
    FsdpUnitSpec unit{.name = cat("layers from ", first), .modules = {}, .axes = axes};
    for (std::size_t i = first; i < std::min(first + layers_of_unit, layers.size()); ++i) {
      unit.modules.push_back(layers[i].shared());
    }
    parallelize_fsdp(runtime, unit);
  }
  if (layout.composition != Composition::kGroupsByHand || model.backbone->ties_word_embeddings()) return;
  for (const auto& head : model.heads()) parallelize_fsdp(runtime, {.name = "head", .modules = {head}, .axes = axes});
}

void parallelize_by_hand(const DistContext& context, const LayoutModel& model, const Layout& layout) {
  const DeviceMesh& dense = context.mesh(MeshDomain::kDense);
  const DeviceMesh& expert = context.mesh(MeshDomain::kExpert);
  D9D_CHECK(dense.axis_size("tp") == 1, ConfigError, "[test::parallelize_by_hand] mesh.tensor_parallel is not for it.");
  PreNormDecoder& decoder = *model.backbone;
  const DeviceMesh ranks = context.mesh(MeshDomain::kBatch).slice({"cp"});
  if (ranks.num_ranks() > 1) {
    const PositionCut positions = context_parallel_cut(ranks);
    parallelize_context_parallel(decoder, positions, layout.context);
    decoder.set_context_ranks(positions);
    for (const auto& head : model.heads()) parallelize_context_parallel(*head, positions);
  }
  parallelize_experts(context, decoder, ranks);
  if (dense.axis_size("dp_cp_shard") > 1) {
    shard_layers(context, model, layout);
  } else if (expert.axis_size("ep_shard") > 1) {
    decoder.for_each_module([&](const std::string&, Module& each) {
      if (auto* const layer = dynamic_cast<MoELayer*>(&each)) {
        parallelize_replicate(*layer->grouped_experts, expert, {"ep_replicate"});
      }
    });
  }
  parallelize_replicate(decoder, dense, dense_data_axes());
  for (const auto& head : model.heads()) parallelize_replicate(*head, dense, dense_data_axes());
}

}  // namespace

void parallelize(const DistContext& context, const LayoutModel& model, const Layout& layout) {
  for (const auto& layer : model.backbone->layers()) {
    auto* const own = dynamic_cast<OwnLayer*>(layer.shared().get());
    if (own != nullptr) own->set_ranks(context.mesh(MeshDomain::kBatch).slice({"dp", "cp", "tp"}));
  }
  if (layout.composition == Composition::kDefault) {
    parallelize_decoder(context, *model.backbone, model.heads(), layout.fsdp, layout.tensor, layout.context);
  } else {
    parallelize_by_hand(context, model, layout);
  }
}

}  // namespace d9d::test
