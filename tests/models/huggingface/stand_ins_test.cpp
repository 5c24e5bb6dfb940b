// Folders like the published ones: names, dtypes, shapes, order and shards of Qwen3's, with holes in place of most
// weights (benchmarks/model_state/stand_in.py).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/config/load_config.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_moe/huggingface.h"

#include "tests/support/io_faults.h"
#include "tests/support/python.h"
#include "tests/support/ranks.h"

namespace d9d::stand_ins_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// The tensors that a mapper makes, without data.
std::map<std::string, std::string> described(const std::vector<TensorSource>& tensors) {
  std::map<std::string, std::string> result;
  for (const TensorSource& each : tensors) {
    result.emplace(each.name, cat(each.dtype, ' ', at::IntArrayRef(each.shape)));
  }
  return result;
}

// What one of many ranks reads and gets: its share, with the numbers that lie in the middle of each matrix.
void load_share(Module& model, const StateMapper& mapper, const HuggingFaceDirectory& directory,
                std::int64_t num_ranks) {
  const DeviceMesh mesh("m", {{"r", num_ranks}}, test::lone_rank(num_ranks / 2, num_ranks));
  for (const auto& [name, parameter] : model.named_parameters()) parameter->place(mesh, "r", Shard{0}, Shard{0});
  model.materialize(at::kCPU);
  const BytesRead bytes = load_model_state(model, mapper, tensors_of(directory)).bytes;
  EXPECT_GT(bytes.wanted, 0);
  EXPECT_LE(bytes.read, bytes.wanted + bytes.wanted / 20);
  std::map<std::string, at::Tensor> locals;  // of the first layer
  for (const auto& [name, parameter] : model.named_parameters()) {
    if (name.find("layers.0.") != std::string::npos) locals.emplace(name, parameter->dtensor().local);
  }
  std::int64_t num_nonzero = 0;
  std::set<std::string> without_experts;
  for (const auto& [name, local] : locals) {
    num_nonzero += at::count_nonzero(local).item<std::int64_t>();
    if (name.find("experts") == std::string::npos) without_experts.insert(name);
  }
  EXPECT_GT(num_nonzero, 100);
  for (const SourceGroup& group : source_groups(mapper, tensors_of(directory), without_experts)) {
    for (const auto& [name, whole] : read_group(group, without_experts)) {
      EXPECT_TRUE(at::equal(locals.at(name), distribute(whole.local, mesh, {Shard{0}}).local)) << name;
    }
  }
  const std::string layer = "model.layers.0.mlp.",
                    first_expert = cat(layer, "experts.64.");  // of 128, on the middle rank
  if (!directory.find(first_expert + "up_proj.weight")) return;
  for (const std::string name : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
    const at::Tensor expert = directory.find(first_expert + name)->read();
    EXPECT_TRUE(at::equal(locals.at(layer + "grouped_experts." + name)[0], expert.t())) << name;
  }
}

template <class Parameters>
void expect_maps(const ModelFamily<Parameters>& family, const std::string& name, std::int64_t num_layers,
                 std::int64_t num_shards, const std::vector<std::string>& unused, std::int64_t num_ranks) {
  SCOPED_TRACE(name);
  const fs::path folder = test::fresh_directory("d") / name;
  test::run_python("benchmarks/model_state/stand_in.py", {name, folder, "--layers", std::to_string(num_layers)});
  EXPECT_EQ(fs::exists(folder / huggingface_shard_name(num_shards - 1, num_shards)), true);
  const HuggingFaceDirectory directory(folder);
  const auto parameters = family.parameters_from_huggingface(directory.read_config());
  auto preset = load_record<Parameters>(cat(D9D_SOURCE_DIR, "/d9d/models/", family.name, "/presets/", name, ".json"));
  preset.num_hidden_layers = num_layers;
  EXPECT_EQ(write_record(parameters), write_record(preset));

  const StateMapper in = family.from_huggingface(parameters, CausalLMHeadConfig{}, directory.names());
  EXPECT_EQ(unused_names(in, directory.names()), unused);
  const auto model = make_decoder_for_causal_lm(family.build(parameters, {}));
  model->to(at::kBFloat16);
  std::map<std::string, std::string> expected;
  for (const auto& [parameter, tensor] : model->state_dict()) {
    if (in.outputs().contains(parameter)) expected[parameter] = cat(tensor.scalar_type(), ' ', tensor.sizes());
  }
  EXPECT_EQ(expected.size(), model->named_parameters().size());
  auto made = described(mapped_sources(in, tensors_of(directory)));
  // A tied head is made too, for a stage that has no embedding.
  EXPECT_EQ(made.erase("head.lm_head.regular.weight"), 1U);
  expected.erase("head.lm_head.regular.weight");
  EXPECT_EQ(made, expected);

  // What an export writes is what was there.
  auto published = described(mapped_sources(mapper::identities(in.inputs()), tensors_of(directory)));
  EXPECT_EQ(
      described(mapped_sources(family.to_huggingface(parameters, CausalLMHeadConfig{}, ExpertsFormat::kModuleList),
                               tensors_of(model->state_dict()))),
      published);
  load_share(*model, in, directory, num_ranks);
}

TEST(StandIns, Of_published_dense_models_map_both_ways) {
  expect_maps(kQwen3Dense, "0.6B", 28, 1, {"lm_head.weight"}, 64);
  expect_maps(kQwen3Dense, "8B", 36, 5, {}, 512);
}

TEST(StandIns, Of_a_published_mixture_of_experts_map_both_ways) { expect_maps(kQwen3MoE, "30B-A3B", 4, 2, {}, 64); }

}  // namespace
}  // namespace d9d::stand_ins_test
