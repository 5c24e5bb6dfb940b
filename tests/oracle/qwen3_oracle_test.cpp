// Qwen3 models against Hugging Face transformers: logits, loss, every gradient, in bf16 too; four AdamW steps; an
// export that reloads.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/core/dtype/scalar_type.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/modules/models/decoder/decoder_with_head.h"
#include "d9d/modules/models/huggingface/module_weights.h"
#include "d9d/modules/models/qwen3_dense/huggingface.h"
#include "d9d/modules/models/qwen3_dense/model.h"
#include "d9d/modules/models/qwen3_moe/huggingface.h"
#include "d9d/modules/models/qwen3_moe/model.h"
#include "d9d/optim/adamw.h"

#include "tests/oracle/routing_replay.h"
#include "tests/support/compare.h"
#include "tests/support/compare_rounded.h"
#include "tests/support/python.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;
const HeadConfig kHead = CausalLMHeadConfig{};

// What differs between the families.
struct Dense {
  using Model = Qwen3DenseModel;
  static auto parameters(const nlohmann::json& config) { return qwen3_dense_parameters_from_huggingface(config); }
  template <class... Args>
  static auto load(const Args&... args) {
    return qwen3_dense_from_huggingface(args...);
  }
  template <class... Args>
  static auto save(const Args&... args) {
    return qwen3_dense_to_huggingface(args...);
  }
  template <class... Args>
  static auto config(const Args&... args) {
    return qwen3_dense_huggingface_config(args...);
  }
};
struct MoE {
  using Model = Qwen3MoEModel;
  static auto parameters(const nlohmann::json& config) { return qwen3_moe_parameters_from_huggingface(config); }
  template <class... Args>
  static auto load(const Args&... args) {
    return qwen3_moe_from_huggingface(args...);
  }
  template <class... Args>
  static auto save(const Args&... args) {
    return qwen3_moe_to_huggingface(args...);
  }
  template <class... Args>
  static auto config(const Args&... args) {
    return qwen3_moe_huggingface_config(args...);
  }
};

struct Case {
  fs::path folder;
  Dtype dtype;
  SafetensorsFile expected;
};

std::vector<Case> cases_of(const fs::path& root, const std::string& family, const std::vector<Dtype>& dtypes) {
  std::vector<Case> cases;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(family)) continue;
    for (const Dtype dtype : dtypes) {
      if (!name.ends_with(enum_name(dtype))) continue;
      cases.push_back({entry.path(), dtype, SafetensorsFile(entry.path() / "expected.safetensors")});
    }
  }
  return cases;
}

const std::vector<Dtype> kWide = {Dtype::kFloat32, Dtype::kFloat64};

const test::Tolerance& tolerance_of(const Case& oracle) {
  return test::tolerance(oracle.dtype == Dtype::kFloat64 ? "fp64" : "fp32");
}

template <class Family>
class LoadedModel {
 public:
  explicit LoadedModel(const Case& oracle, bool checkpointing = false)
      : directory_(oracle.folder), parameters_(Family::parameters(directory_.read_config())) {
    model = make_decoder_for_causal_lm(
        make_module<typename Family::Model>(parameters_, DecoderStageOptions{.enable_checkpointing = checkpointing}));
    model->to(to_scalar_type(oracle.dtype));
    model->materialize(at::kCPU);
    model->reset_parameters(1);
    const auto unused = load_weights(*model, Family::load(parameters_, kHead, directory_.names()), directory_);
    EXPECT_TRUE(unused.empty()) << unused.front();
  }

  DecoderOutput<LanguageModellingHead> forward(const at::Tensor& ids, const at::Tensor& labels) {
    const at::Tensor positions = at::arange(ids.size(1)).unsqueeze(0).expand_as(ids);
    return std::get<DecoderOutput<LanguageModellingHead>>(
        model(SequenceInput{ids}, DecoderForCausalLM::Shared{{.position_ids = positions}, {labels}}));
  }

  at::Tensor loss(const Case& oracle) {
    const at::Tensor labels = oracle.expected.tensor("labels");
    return forward(oracle.expected.tensor("input_ids"), labels).head.cross_entropy.sum() /
           labels.ne(kIgnoreIndex).sum();
  }

  at::Tensor logits(const at::Tensor& ids) {
    const at::Tensor positions = at::arange(ids.size(1)).unsqueeze(0).expand_as(ids);
    return model->head->logits(
        model->model(SequenceInput{ids}, SequenceShared{.position_ids = positions}).hidden_states);
  }

  // Tensors named and shaped as parameters, under the names of transformers.
  std::map<std::string, at::Tensor> to_huggingface(const std::map<std::string, at::Tensor>& tensors) const {
    std::map<std::string, at::Tensor> renamed;
    for (const TensorSource& tensor : map_tensors(Family::save(parameters_, kHead), tensors)) {
      renamed.emplace(tensor.name, tensor.read());
    }
    return renamed;
  }

  std::map<std::string, at::Tensor> gradients() const {
    std::map<std::string, at::Tensor> gradients;
    for (const auto& [name, parameter] : model->named_parameters()) gradients.emplace(name, parameter->local().grad());
    return to_huggingface(gradients);
  }

  void export_to(const fs::path& folder, Dtype dtype) const {
    write_huggingface_directory(folder, Family::config(parameters_, kHead, dtype),
                                map_tensors(Family::save(parameters_, kHead), model->state_dict()));
  }

  ModulePtr<DecoderForCausalLM> model;

 private:
  HuggingFaceDirectory directory_;
  decltype(Family::parameters(nlohmann::json())) parameters_;
};

// The expected tensors of a kind ("grad.", "param."), without that prefix.
std::map<std::string, at::Tensor> expected_of(const Case& oracle, const std::string& kind) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : oracle.expected.entries()) {
    if (name.starts_with(kind)) tensors.emplace(name.substr(kind.size()), oracle.expected.tensor(name));
  }
  return tensors;
}

std::map<std::string, at::Tensor> prefixed(const std::string& prefix,
                                           const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> renamed;
  for (const auto& [name, tensor] : tensors) renamed.emplace(prefix + name, tensor);
  return renamed;
}

class Qwen3Oracle : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::path(::testing::TempDir()) / "d9d_qwen3_oracle";
    fs::remove_all(root_);
    fs::create_directories(root_);
    test::run_python("tests/oracle/qwen3_oracle.py", {root_.string()});
  }

  template <class Family>
  void check_gradients(const std::string& family, bool checkpointing) {
    const std::vector<Case> cases = cases_of(root_, family, kWide);
    ASSERT_GE(cases.size(), 4U);
    for (const Case& oracle : cases) {
      LoadedModel<Family> loaded(oracle, checkpointing);
      SCOPED_TRACE(oracle.folder.filename());
      test::expect_close("logits", loaded.logits(oracle.expected.tensor("input_ids")), oracle.expected.tensor("logits"),
                         tolerance_of(oracle));
      const at::Tensor loss = loaded.loss(oracle);
      test::expect_close("loss", loss, oracle.expected.tensor("loss"), tolerance_of(oracle));
      loss.backward();
      test::expect_all_close(loaded.gradients(), expected_of(oracle, "grad."), tolerance_of(oracle));
    }
  }

  // In bf16, with the routing of transformers.
  template <class Family>
  void check_rounding(const std::string& family) {
    const std::vector<Case> cases = cases_of(root_, family, {Dtype::kBFloat16});
    ASSERT_GE(cases.size(), 2U);
    for (const Case& oracle : cases) {
      SCOPED_TRACE(oracle.folder.filename());
      LoadedModel<Family> loaded(oracle);
      std::vector<std::shared_ptr<test::RoutingReplay>> replays;
      loaded.model->for_each_module([&](const std::string&, Module& module) {
        if (dynamic_cast<TopKRouter*>(&module) == nullptr) return;
        const at::Tensor indices = oracle.expected.tensor("routing." + std::to_string(replays.size()));
        module.add_hook(replays.emplace_back(std::make_shared<test::RoutingReplay>(indices)));
      });
      std::map<std::string, at::Tensor> ours, theirs = expected_of(oracle, ""), exact;
      const at::Tensor loss = loaded.loss(oracle);
      loss.backward();
      ours = loaded.gradients();
      test::expect_close("loss", loss, oracle.expected.tensor("loss"), test::tolerance("bf16 loss"));
      test::expect_same_direction(ours, expected_of(oracle, "grad."));
      ours = prefixed("grad.", ours);
      ours.emplace("logits", loaded.logits(oracle.expected.tensor("input_ids")));
      const SafetensorsFile exact_file(oracle.folder / "exact.safetensors");
      for (const auto& [name, entry] : exact_file.entries()) {
        if (name != "loss") exact.emplace(name, exact_file.tensor(name));
      }
      test::expect_rounding_like(ours, theirs, exact);
      for (const auto& replay : replays) {
        EXPECT_LE(replay->largest_margin(), test::tolerance("bf16 routing").value);
      }
    }
  }

  template <class Family>
  void check_training(const std::string& family) {
    for (const Case& oracle : cases_of(root_, family, kWide)) {
      SCOPED_TRACE(oracle.folder.filename());
      const bool is_double = oracle.dtype == Dtype::kFloat64;
      LoadedModel<Family> loaded(oracle);
      std::vector<NamedParameter> parameters;
      for (const auto& [name, parameter] : loaded.model->named_parameters())
        parameters.push_back({name, parameter->local()});
      AdamW optimizer(parameters, {.lr = 1e-3, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1});
      for (int step = 0; step < 4; ++step) {
        for (const NamedParameter& parameter : parameters) parameter.tensor.mutable_grad() = at::Tensor();
        const at::Tensor loss = loaded.loss(oracle);
        loss.backward();
        optimizer.step(optimizer.learning_rate());
        const std::string name = "loss." + std::to_string(step);
        test::expect_close(name, loss, oracle.expected.tensor(name),
                           is_double ? test::tolerance("fp64") : test::tolerance("fp32 training loss"));
      }
      if (is_double) {
        test::expect_all_close(loaded.to_huggingface(loaded.model->state_dict()), expected_of(oracle, "param."),
                               test::tolerance("fp64"));
      }
    }
  }

  template <class Family>
  void export_all(const std::string& family) {
    for (const Case& oracle : cases_of(root_, family, kWide)) {
      LoadedModel<Family> loaded(oracle);
      loaded.export_to(root_ / "exports" / oracle.folder.filename(), oracle.dtype);
    }
  }

  static inline fs::path root_;
};

TEST_F(Qwen3Oracle, Dense_logits_loss_and_gradients_equal_transformers) { check_gradients<Dense>("dense", false); }
TEST_F(Qwen3Oracle, MoE_logits_loss_and_gradients_equal_transformers) { check_gradients<MoE>("moe", false); }
TEST_F(Qwen3Oracle, Dense_gradients_with_activation_checkpointing_equal_transformers) {
  check_gradients<Dense>("dense", true);
}
TEST_F(Qwen3Oracle, MoE_gradients_with_activation_checkpointing_equal_transformers) {
  check_gradients<MoE>("moe", true);
}
TEST_F(Qwen3Oracle, Dense_in_bf16_rounds_as_transformers_does) { check_rounding<Dense>("dense"); }
TEST_F(Qwen3Oracle, MoE_in_bf16_rounds_as_transformers_does) { check_rounding<MoE>("moe"); }
TEST_F(Qwen3Oracle, Dense_AdamW_steps_follow_PyTorch) { check_training<Dense>("dense"); }
TEST_F(Qwen3Oracle, MoE_AdamW_steps_follow_PyTorch) { check_training<MoE>("moe"); }

TEST_F(Qwen3Oracle, Exports_reload_in_transformers_with_identical_logits) {
  export_all<Dense>("dense");
  export_all<MoE>("moe");
  test::run_python("tests/oracle/qwen3_reload.py", {root_.string()});
}

}  // namespace
}  // namespace d9d
