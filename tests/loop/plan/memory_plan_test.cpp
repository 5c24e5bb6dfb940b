#include "d9d/loop/plan/memory_plan.h"

#include <iostream>

#include <gtest/gtest.h>

#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/models/qwen3_moe/model.h"

#include "tests/support/decoder_families.h"
#include "tests/support/memory_peak.h"
#include "tests/support/ranks.h"

namespace d9d::memory_plan_test {
namespace {

using test::MemoryPeak;

struct Provider : ModelProvider<LanguageModelTypes> {
  ModelStage<LanguageModelTypes> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    const DecoderStageOptions options{.stage = stage, .enable_checkpointing = checkpoints};
    const test::SmallDecoder sizes{.num_layers = 8};
    if (has_experts) {
      backbone = make_module<Qwen3MoEModel>(test::small_parameters<Qwen3MoEParameters>(sizes), options);
    } else {
      backbone = make_module<Qwen3DenseModel>(test::small_parameters<Qwen3DenseParameters>(sizes), options);
    }
    model = make_decoder_for_causal_lm(backbone);
    return as_model_stage<LanguageModelTypes>(model);
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    parallelize_decoder(context, *backbone, {model->head.shared()}, fsdp);
  }

  bool has_experts = false;
  bool checkpoints = false;
  FsdpConfig fsdp = {};
  ModulePtr<PreNormDecoder> backbone;
  ModulePtr<DecoderForCausalLM> model;
};

void print(const std::vector<RankMemory>& ranks) {
  for (const RankMemory& rank : ranks) {
    std::cout << "rank " << rank.pipeline_rank << " working " << rank.working << " total " << rank.total << "\n";
    for (const StageMemory& s : rank.stages) {
      std::cout << "  stage " << s.stage.value << " n " << s.num_parameters << " p " << s.parameters << " o "
                << s.optimizer << " ga " << s.gathered << " gr " << s.gradients << " a " << s.activations << " d "
                << s.deferred << " live " << s.num_live << " wait " << s.num_waiting << "\n";
    }
  }
}

std::vector<RankMemory> measured(const MemoryRequest& request, const Provider& like) {
  std::vector<RankMemory> ranks(static_cast<std::size_t>(request.mesh.pipeline_parallel));
  test::run_ranks(test::RankBackend::kThreads, request.mesh.world_size(), [&](World& world) {
    const DistContext context({.mesh = request.mesh, .world = test::borrowed(world), .log_sink = [](auto) {}});
    Provider model = like;
    const MemoryPeak memory;
    std::optional<MemoryPeak> step;
    const MemoryMeter meter{.live_bytes = [&] { return memory.live_bytes(); },
                            .peak_bytes = [&] { return memory.peak_bytes(); },
                            .reset_peak = [] {}};
    RankMemory rank = measure_memory(context, request, model, meter);
    const auto pp = static_cast<std::size_t>(context.mesh(MeshDomain::kRegular).axis_coordinate("pp"));
    if (world.rank() % (world.size() / request.mesh.pipeline_parallel) == 0) ranks[pp] = rank;
  });
  return ranks;
}

TEST(MemoryPlan, Prints) {
  for (const bool moe : {false, true}) {
    for (const DeviceMeshParameters& mesh :
         {DeviceMeshParameters{}, DeviceMeshParameters{.pipeline_parallel = 2},
          DeviceMeshParameters{.data_parallel_shard = 2}, DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
      Provider model;
      model.has_experts = moe;
      MemoryRequest request{.mesh = mesh,
                            .optimizer = AdamWConfig{},
                            .num_sequences = 2,
                            .sequence_length = 64,
                            .num_microbatches = 4};
      if (mesh.pipeline_parallel > 1) request.trainer.pipelining.schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true};
      std::cout << "moe " << moe << " pp " << mesh.pipeline_parallel << " dps " << mesh.data_parallel_shard << "\nplan\n";
      print(plan_memory(request, model));
      std::cout << "CPU\n";
      print(measured(request, model));
    }
  }
}

}  // namespace
}  // namespace d9d::memory_plan_test
