// Qwen3 models against Hugging Face transformers: logits, loss, every gradient, four AdamW steps, and an export that reloads.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "d9d/loop/component/gradient_manager.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/modules/models/decoder/decoder_with_head.h"
#include "d9d/modules/models/huggingface/module_weights.h"
#include "d9d/modules/models/qwen3_dense/huggingface.h"
#include "d9d/modules/models/qwen3_dense/model.h"
#include "d9d/modules/models/qwen3_moe/huggingface.h"
#include "d9d/modules/models/qwen3_moe/model.h"
#include "d9d/optim/adamw.h"
#include "tests/support/compare.h"
#include "tests/support/python.h"
#include "tests/support/tolerances.h"

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

std::vector<Case> cases_of(const fs::path& root, const std::string& family) {
  std::vector<Case> cases;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(family)) continue;
    const Dtype dtype = name.ends_with("float64") ? Dtype::kFloat64 : Dtype::kFloat32;
    cases.push_back({entry.path(), dtype, SafetensorsFile(entry.path() / "expected.safetensors")});
  }
  return cases;
}

double tolerance_of(const Case& oracle) {
  return oracle.dtype == Dtype::kFloat64 ? test::kModelFloat64 : test::kModelFloat32;
}

template <class Family>
class LoadedModel {
 public:
  explicit LoadedModel(const Case& oracle, bool checkpointing = false)
      : directory_(oracle.folder), parameters_(Family::parameters(directory_.read_config())) {
    model = make_decoder_for_causal_lm(make_module<typename Family::Model>(
        parameters_, DecoderStageOptions{.enable_checkpointing = checkpointing}));
    model->to(oracle.dtype == Dtype::kFloat64 ? at::kDouble : at::kFloat);
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
    return forward(oracle.expected.tensor("input_ids"), labels).head.cross_entropy.sum() / labels.ne(kIgnoreIndex).sum();
  }

  at::Tensor logits(const at::Tensor& ids) {
    const at::Tensor positions = at::arange(ids.size(1)).unsqueeze(0).expand_as(ids);
    return model->head->logits(model->model(SequenceInput{ids}, SequenceShared{.position_ids = positions}).hidden_states);
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

// Compares all tensors of a kind ("grad.", "param."): each of our names must be expected and the reverse.
void expect_all_equal(const Case& oracle, const std::string& kind, const std::map<std::string, at::Tensor>& ours,
                      double tolerance) {
  std::size_t num_expected = 0;
  double largest = 0.0;
  for (const auto& [name, entry] : oracle.expected.entries()) {
    if (!name.starts_with(kind)) continue;
    ++num_expected;
    largest = std::max(largest, oracle.expected.tensor(name).abs().max().item<double>());
  }
  EXPECT_EQ(ours.size(), num_expected);
  for (const auto& [name, tensor] : ours) {
    EXPECT_TRUE(test::near(tensor, oracle.expected.tensor(kind + name), {.tolerance = tolerance, .largest = largest}))
        << oracle.folder.filename() << " " << kind << name;
  }
}

class Qwen3Oracle : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    root_ = fs::path(::testing::TempDir()) / "d9d_qwen3_oracle";
    fs::remove_all(root_);
    fs::create_directories(root_);
    test::run_python_once("tests/oracle/qwen3_oracle.py", {root_.string()});
  }

  template <class Family>
  void check_gradients(const std::string& family, bool checkpointing) {
    const std::vector<Case> cases = cases_of(root_, family);
    ASSERT_GE(cases.size(), 4U);
    for (const Case& oracle : cases) {
      LoadedModel<Family> loaded(oracle, checkpointing);
      EXPECT_TRUE(test::near(loaded.logits(oracle.expected.tensor("input_ids")), oracle.expected.tensor("logits"),
                             {.tolerance = tolerance_of(oracle)}))
          << oracle.folder.filename() << " logits";
      const at::Tensor loss = loaded.loss(oracle);
      EXPECT_TRUE(test::near(loss, oracle.expected.tensor("loss"), {.tolerance = tolerance_of(oracle)}))
          << oracle.folder.filename() << " loss";
      loss.backward();
      expect_all_equal(oracle, "grad.", loaded.gradients(), tolerance_of(oracle));
    }
  }

  template <class Family>
  void check_training(const std::string& family) {
    for (const Case& oracle : cases_of(root_, family)) {
      LoadedModel<Family> loaded(oracle);
      std::vector<NamedParameter> parameters;
      for (const auto& [name, parameter] : loaded.model->named_parameters()) parameters.push_back({name, parameter->local()});
      AdamW optimizer(parameters, {.lr = 1e-2, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1});
      for (int step = 0; step < 4; ++step) {
        for (const NamedParameter& parameter : parameters) parameter.tensor.mutable_grad() = at::Tensor();
        const at::Tensor loss = loaded.loss(oracle);
        loss.backward();
        optimizer.step(optimizer.learning_rate());
        const double tolerance = oracle.dtype == Dtype::kFloat64 ? test::kModelFloat64 : test::kTrainingLossFloat32;
        EXPECT_TRUE(test::near(loss, oracle.expected.tensor("loss." + std::to_string(step)), {.tolerance = tolerance}))
            << oracle.folder.filename() << " step " << step;
      }
      if (oracle.dtype == Dtype::kFloat64) {
        expect_all_equal(oracle, "param.", loaded.to_huggingface(loaded.model->state_dict()), test::kModelFloat64);
      }
    }
  }

  template <class Family>
  void export_all(const std::string& family) {
    for (const Case& oracle : cases_of(root_, family)) {
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
TEST_F(Qwen3Oracle, MoE_gradients_with_activation_checkpointing_equal_transformers) { check_gradients<MoE>("moe", true); }
TEST_F(Qwen3Oracle, Dense_AdamW_steps_follow_PyTorch) { check_training<Dense>("dense"); }
TEST_F(Qwen3Oracle, MoE_AdamW_steps_follow_PyTorch) { check_training<MoE>("moe"); }

TEST_F(Qwen3Oracle, Exports_reload_in_transformers_with_identical_logits) {
  export_all<Dense>("dense");
  export_all<MoE>("moe");
  test::run_python("tests/oracle/qwen3_reload.py", {root_.string()});
}

}  // namespace
}  // namespace d9d
