// The examples of docs/model_state.md, which cuts them out of this file: what they say happens, happens.
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/core/dtensor/redistribute.h"
#include "d9d/model_state/convert_model_state.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/model_state/mapping_report.h"
#include "d9d/model_state/write_model_state.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::documented_io_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

Tensors published() {
  return {{"q_proj", at::arange(256, at::kFloat).view({64, 4})},
          {"k_proj", at::arange(256, 384, at::kFloat).view({32, 4})},
          {"v_proj", at::arange(384, 512, at::kFloat).view({32, 4})}};
}
at::Tensor packed() {
  const Tensors tensors = published();
  return at::cat({tensors.at("q_proj"), tensors.at("k_proj"), tensors.at("v_proj")});
}

struct Attention : Module {
  Attention() {
    register_parameter("qkv_proj", {.shape = {128, 4}, .init = init::zeros()});
    register_parameter("head_weight", {.shape = {3}, .init = init::ones()});
  }
};

// One of two pipeline stages, each with a parameter of its own.
struct Stage : Module {
  explicit Stage(std::int64_t number) {
    register_parameter("layer" + std::to_string(number), {.shape = {2}, .init = init::ones()});
  }
};

// The examples name folders relative to the working directory.
class DocumentedIo : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::current_path(test::fresh_directory("work"));
    std::vector<TensorSource> sources;
    for (const auto& [name, tensor] : published()) sources.push_back(tensor_source(name, tensor));
    write_huggingface_directory("published", nlohmann::json::object(), sources);
  }
  void TearDown() override { fs::current_path(before_); }

  static StateMapper joining() {
    const d9d::StateMapper in = d9d::mapper::concatenate({"q_proj", "k_proj", "v_proj"}, "qkv_proj", 0);
    return in;
  }
  static StateMapper cutting() {
    const d9d::StateMapper out = d9d::mapper::split("qkv_proj", {{"q_proj", 64}, {"k_proj", 32}, {"v_proj", 32}}, 0);
    return out;
  }
  static void expect_published(const fs::path& folder) {
    const HuggingFaceDirectory directory(folder);
    EXPECT_THAT(directory.names(), ElementsAre("k_proj", "q_proj", "v_proj"));
    for (const auto& [name, tensor] : published()) EXPECT_TRUE(at::equal(directory.find(name)->read(), tensor)) << name;
  }

 private:
  fs::path before_ = fs::current_path();
};

TEST_F(DocumentedIo, Reads_tensors_one_at_a_time) {
  const d9d::StateMapper mapper = joining();
  const d9d::HuggingFaceDirectory directory("published");
  for (const d9d::TensorSource& tensor : d9d::mapped_sources(mapper, d9d::tensors_of(directory))) {
    const at::Tensor values = tensor.read();  // q, k and v are read here, and are gone when values is
    EXPECT_EQ(tensor.name, "qkv_proj");
    EXPECT_TRUE(at::equal(values, packed()));
  }
}

TEST_F(DocumentedIo, Writes_tensors_of_a_program) {
  const d9d::StateMapper mapper = cutting();
  const nlohmann::json config = {{"model_type", "mine"}};
  const std::map<std::string, at::Tensor> tensors = {{"qkv_proj", packed()}};
  d9d::write_huggingface_directory("written", config, d9d::mapped_sources(mapper, d9d::tensors_of(tensors)),
                                   {.max_shard_bytes = 600});  // of a file, unless one tensor is larger
  expect_published("written");
  EXPECT_TRUE(fs::exists("written/model-00001-of-00003.safetensors"));
  EXPECT_EQ(HuggingFaceDirectory("written").read_config().at("model_type"), "mine");
}

TEST_F(DocumentedIo, Fills_a_model) {
  const auto made = make_module<Attention>();
  made->materialize(at::kCPU);
  made->reset_parameters(1);
  d9d::Module& model = *made;
  const d9d::StateMapper mapper = joining();
  const d9d::HuggingFaceDirectory directory("published");
  const d9d::LoadReport report =
      d9d::load_model_state(model, mapper, d9d::tensors_of(directory), {.may_be_missing = "head_.*"});
  EXPECT_TRUE(at::equal(model.state_dict().at("qkv_proj"), packed()));
  EXPECT_THAT(report.missing, ElementsAre("head_weight"));
}

TEST_F(DocumentedIo, Writes_a_model_whose_parts_lie_on_several_ranks) {
  test::run_ranks(test::RankBackend::kThreads, 4, [](World& world) {
    const DeviceMesh job("job", {{"shard", 4}}, test::borrowed(world));
    const auto made = make_module<Attention>();
    made->named_parameters()[0].second->place(job, "shard", d9d::Shard{0}, d9d::Shard{0});
    made->materialize(at::kCPU);
    const d9d::Module& model = *made;
    {
      const at::NoGradGuard no_grad;
      model.named_parameters()[0].second->dtensor().local.copy_(distribute(packed(), job, {d9d::Shard{0}}).local);
    }
    const d9d::StateMapper mapper = cutting();
    const std::string config = "{}";
    d9d::write_model_state("export", mapper, d9d::state_of(model), job, {.files = {{"config.json", config}}});
  });
  expect_published("export");
}

TEST_F(DocumentedIo, Writes_a_model_whose_layers_lie_on_several_stages) {
  test::run_ranks(test::RankBackend::kThreads, 2, [](World& world) {
    const DeviceMesh job("job", {{"pp", 2}}, test::borrowed(world));
    const auto stage = make_module<Stage>(world.rank());
    stage->materialize(at::kCPU);
    stage->reset_parameters(1);
    const d9d::StateMapper mapper = d9d::mapper::parallel({d9d::mapper::rename("layer0", "model.layers.0.weight"),
                                                           d9d::mapper::rename("layer1", "model.layers.1.weight")});
    d9d::write_model_state("export", mapper, d9d::state_of(*stage), job);  // a rank gives what it has
  });
  EXPECT_THAT(HuggingFaceDirectory("export").names(), ElementsAre("model.layers.0.weight", "model.layers.1.weight"));
}

TEST_F(DocumentedIo, Converts_a_folder) {
  const d9d::StateMapper mapper = joining();
  const d9d::HuggingFaceDirectory directory("published");
  const std::string report = d9d::text_of(d9d::report_mapping(mapper, d9d::tensors_of(directory)));  // a dry run
  const std::vector<std::string> unused =
      d9d::convert_model_state("packed", mapper, d9d::tensors_of(directory), {.num_workers = 4});
  EXPECT_THAT(report, HasSubstr("-> qkv_proj  Float [128, 4]"));
  EXPECT_TRUE(unused.empty());
  EXPECT_TRUE(at::equal(HuggingFaceDirectory("packed").find("qkv_proj")->read(), packed()));
  (void)d9d::convert_model_state("again", cutting(), d9d::tensors_of(HuggingFaceDirectory("packed")));
  expect_published("again");
}

}  // namespace
}  // namespace d9d::documented_io_test
