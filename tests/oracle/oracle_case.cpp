#include "tests/oracle/oracle_case.h"

#include <fstream>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapped_sources.h"

#include "tests/support/python.h"

namespace d9d::test {
namespace fs = std::filesystem;

std::string OracleCase::folder_name() const { return cat(architecture->name, ".", task->name, ".", enum_name(dtype)); }

fs::path OracleCase::folder() const { return (root.empty() ? oracle_folder() : root) / folder_name(); }

SafetensorsFile OracleCase::expected() const { return SafetensorsFile(folder() / "expected.safetensors"); }

std::vector<OracleCase> cases_in(const std::vector<Dtype>& dtypes, const std::string& only_task) {
  std::vector<OracleCase> cases;
  for (const Architecture& architecture : architectures()) {
    for (const Task& task : tasks()) {
      if (!only_task.empty() && task.name != only_task) continue;
      for (const Dtype dtype : dtypes) {
        cases.push_back({.architecture = &architecture, .task = &task, .dtype = dtype});
      }
    }
  }
  return cases;
}

namespace {

void run_oracle(const fs::path& root, const std::vector<Architecture>& table, const std::string& what) {
  fs::remove_all(root);
  fs::create_directories(root);
  nlohmann::json configs;
  for (const Architecture& architecture : table) configs[architecture.name] = architecture.huggingface_config;
  std::ofstream(root / "architectures.json") << configs;
  run_python("tests/oracle/transformers_oracle.py", {root.string(), what});
}

}  // namespace

const fs::path& oracle_folder() {
  static const fs::path folder = [] {
    at::set_num_threads(1);  // the models are tiny
    fs::path root = fs::path(::testing::TempDir()) / "d9d" / "transformers_oracle";
    run_oracle(root, architectures(), "tiny");
    return root;
  }();
  return folder;
}

std::vector<OracleCase> write_published_layers(const fs::path& root) {
  run_oracle(root, published_layers(), "layers");
  std::vector<OracleCase> cases;
  for (const Architecture& architecture : published_layers()) {
    cases.push_back({.architecture = &architecture, .task = &tasks().at(0), .dtype = Dtype::kFloat32, .root = root});
  }
  return cases;
}

Tensors with_prefix(const SafetensorsFile& file, const std::string& prefix) {
  Tensors tensors;
  for (const auto& [name, entry] : file.entries()) {
    if (name.starts_with(prefix)) tensors.emplace(name.substr(prefix.size()), file.tensor(name));
  }
  return tensors;
}

LoadedModel::LoadedModel(const OracleCase& oracle, const DecoderStageOptions& options,
                         const std::optional<PeftConfig>& adapters)
    : oracle_(oracle), directory_(oracle.folder()), config_(directory_.read_config()) {
  const DecoderFamily& family = oracle.architecture->family;
  const HeadConfig& head = oracle.task->head;
  const SafetensorsFile expected = oracle.expected();
  inputs_ = {.input_ids = expected.tensor("input_ids"), .labels = expected.tensor("labels"), .pooling_mask = {}};
  if (expected.entries().contains("pooling_mask")) inputs_.pooling_mask = expected.tensor("pooling_mask");
  model_ = oracle.task->make_model(family.make_backbone(config_, options));
  module().to(to_scalar_type(oracle.dtype));
  if (adapters) adapted_ = adapted_model(*adapters, module());
  module().materialize(at::kCPU);
  module().reset_parameters(/*base_seed=*/1);
  const LoadReport report =
      load_model_state(module(), family.from_huggingface(config_, head, directory_.names()), tensors_of(directory_),
                       {.may_be_missing = adapters ? kAdapterParameters : ""});
  EXPECT_TRUE(report.unused.empty()) << report.unused.front();
}

Tensors LoadedModel::gradients() const {
  Tensors gradients;
  for (const auto& [name, parameter] : module().named_parameters()) gradients.emplace(name, parameter->local().grad());
  return to_huggingface(gradients);
}

Tensors LoadedModel::parameters() const { return to_huggingface(module().state_dict()); }

StateMapper LoadedModel::to_huggingface_mapper() const {
  nlohmann::json config = config_;
  if (!adapted_.untied.empty()) config["tie_word_embeddings"] = false;
  return oracle_.architecture->family.to_huggingface(config, oracle_.task->head);
}

void LoadedModel::export_to(const fs::path& folder) const {
  const DecoderFamily& family = oracle_.architecture->family;
  const HeadConfig& head = oracle_.task->head;
  write_huggingface_directory(folder, family.huggingface_config(config_, head, oracle_.dtype),
                              mapped_sources(to_huggingface_mapper(), tensors_of(module().state_dict())));
}

Tensors LoadedModel::to_huggingface(const Tensors& tensors) const {
  Tensors renamed;
  for (const TensorSource& tensor : mapped_sources(to_huggingface_mapper(), tensors_of(tensors))) {
    renamed.emplace(tensor.name, tensor.read());
  }
  return renamed;
}

}  // namespace d9d::test
