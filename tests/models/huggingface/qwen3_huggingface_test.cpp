// Tests the Hugging Face mapping with transformers: its checkpoints load here, and this library's exports load there.
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/models/qwen3_moe/huggingface.h"

#include "tests/support/io_faults.h"
#include "tests/support/python.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::qwen3_huggingface_test {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using State = std::map<std::string, at::Tensor>;

constexpr const char* kOracle = "tests/models/huggingface/huggingface_oracle.py";

// The sizes that the oracle uses.
template <class Parameters>
Parameters parameters_of() {
  Parameters parameters;
  parameters.layer.hidden_size = 16;
  parameters.layer.num_attention_heads = 4;
  parameters.layer.num_key_value_heads = 2;
  parameters.layer.head_dim = 8;
  parameters.num_hidden_layers = 2;
  parameters.layer.rms_norm_eps = 1e-5;
  parameters.rope_base = 50000;
  parameters.max_position_ids = 2048;
  parameters.split_vocab_size = {{"special", 14}, {"regular", 50}};
  parameters.split_vocab_order = {"regular", "special"};
  return parameters;
}

Qwen3DenseParameters dense(bool tied = false) {
  auto parameters = parameters_of<Qwen3DenseParameters>();
  parameters.layer.intermediate_size = 24;
  parameters.tie_word_embeddings = tied;
  if (!tied) {
    parameters.rope_scaling = YarnRopeScalingConfig{.factor = 4.0, .original_max_position_embeddings = 512};
  }
  return parameters;
}

Qwen3MoEParameters moe() {
  auto parameters = parameters_of<Qwen3MoEParameters>();
  parameters.layer.intermediate_size = 12;
  parameters.layer.num_experts = 4;
  parameters.layer.experts_top_k = 2;
  return parameters;
}

const HeadConfig kCausalLM = CausalLMHeadConfig{};
const HeadConfig kClassification = ClassificationHeadConfig{.num_labels = 3};
const HeadConfig kEmbedding = EmbeddingHeadConfig{};

// A model of each kind, with the oracle's names.
struct Case {
  std::string name;
  std::variant<Qwen3DenseParameters, Qwen3MoEParameters> parameters;
  HeadConfig head;
  Qwen3MoEExpertsFormat experts = Qwen3MoEExpertsFormat::kModuleList;
  std::optional<std::int64_t> max_shard_bytes = {};
};

std::vector<Case> cases() {
  return {{"dense_causal_lm", dense(), kCausalLM},
          {.name = "dense_causal_lm_sharded", .parameters = dense(), .head = kCausalLM, .max_shard_bytes = 5000},
          {"dense_causal_lm_tied", dense(/*tied=*/true), kCausalLM},
          {"dense_classification", dense(), kClassification},
          {"dense_backbone", dense(), kEmbedding},
          {"moe_causal_lm", moe(), kCausalLM},
          {.name = "moe_causal_lm_sharded", .parameters = moe(), .head = kCausalLM, .max_shard_bytes = 5000},
          {"moe_causal_lm_fused", moe(), kCausalLM, Qwen3MoEExpertsFormat::kFused},
          {"moe_classification", moe(), kClassification},
          {"moe_backbone", moe(), kEmbedding}};
}

StateMapper from_huggingface(const Case& model, const std::vector<std::string>& names) {
  if (const auto* parameters = std::get_if<Qwen3DenseParameters>(&model.parameters)) {
    return qwen3_dense_from_huggingface(*parameters, model.head, names);
  }
  return qwen3_moe_from_huggingface(std::get<Qwen3MoEParameters>(model.parameters), model.head, names);
}

StateMapper to_huggingface(const Case& model) {
  if (const auto* parameters = std::get_if<Qwen3DenseParameters>(&model.parameters)) {
    return qwen3_dense_to_huggingface(*parameters, model.head);
  }
  return qwen3_moe_to_huggingface(std::get<Qwen3MoEParameters>(model.parameters), model.head, model.experts);
}

// The model on the meta device, with what transformers has: a causal language model's or a classifier's head, or none.
std::shared_ptr<Module> make_model(const Case& model) {
  const auto backbone =
      std::visit([](const auto& parameters) { return test::make_backbone(parameters); }, model.parameters);
  if (std::holds_alternative<CausalLMHeadConfig>(model.head)) return make_decoder_for_causal_lm(backbone).shared();
  if (const auto* head = std::get_if<ClassificationHeadConfig>(&model.head)) {
    return make_decoder_for_classification(backbone, *head).shared();
  }
  return make_decoder_for_embedding(backbone, std::get<EmbeddingHeadConfig>(model.head)).shared();
}

// Distinct BF16 values for all tensors that an export takes.
State example_state(const Case& model) {
  State state;
  float first = 0;
  const std::set<std::string> exported = to_huggingface(model).inputs();
  for (const auto& [name, tensor] : make_model(model)->state_dict()) {
    if (!exported.contains(name)) continue;
    first += 1;
    const at::Tensor values = at::arange(tensor.numel(), at::kFloat).add(first).sin();
    state.emplace(name, values.reshape(tensor.sizes()).to(at::kBFloat16));
  }
  return state;
}

json huggingface_config(const Case& model) {
  if (const auto* parameters = std::get_if<Qwen3DenseParameters>(&model.parameters)) {
    return qwen3_dense_huggingface_config(*parameters, model.head, Dtype::kBFloat16);
  }
  return qwen3_moe_huggingface_config(std::get<Qwen3MoEParameters>(model.parameters), model.head, Dtype::kBFloat16);
}

// The parameters in config.json, except the vocabulary's splits, which it cannot express.
Json parameters_from_huggingface(const Case& model, const json& config) {
  const auto with_splits = [](auto parameters) {
    EXPECT_EQ(parameters.split_vocab_size.at("regular"), 64);
    parameters.split_vocab_size = dense().split_vocab_size;
    parameters.split_vocab_order = dense().split_vocab_order;
    return write_record(parameters);
  };
  if (std::holds_alternative<Qwen3DenseParameters>(model.parameters)) {
    return with_splits(qwen3_dense_parameters_from_huggingface(config));
  }
  return with_splits(qwen3_moe_parameters_from_huggingface(config));
}

void expect_holds(const SafetensorsFile& expected, const std::vector<TensorSource>& tensors) {
  EXPECT_EQ(tensors.size(), expected.entries().size());
  for (const TensorSource& source : tensors) {
    ASSERT_TRUE(expected.entries().contains(source.name)) << source.name;
    const at::Tensor tensor = read_checked(source), reference = expected.tensor(source.name);
    EXPECT_TRUE(tensor.scalar_type() == reference.scalar_type() && at::equal(tensor, reference)) << source.name;
  }
}

TEST(Qwen3HuggingFace, Loads_what_transformers_saves) {
  const fs::path root = test::fresh_directory("d");
  test::run_python(kOracle, {"save", root});
  for (const Case& model : cases()) {
    SCOPED_TRACE(model.name);
    const HuggingFaceDirectory directory(root / model.name);
    EXPECT_EQ(parameters_from_huggingface(model, directory.read_config()),
              std::visit([](const auto& parameters) { return write_record(parameters); }, model.parameters));
    const StateMapper mapper = from_huggingface(model, directory.names());
    EXPECT_THAT(unused_names(mapper, directory.names()), IsEmpty());
    expect_holds(SafetensorsFile(root / (model.name + ".ours.safetensors")),
                 mapped_sources(mapper, tensors_of(directory)));
  }
}

TEST(Qwen3HuggingFace, Is_loaded_by_transformers_without_missing_or_unexpected_keys) {
  const fs::path root = test::fresh_directory("d");
  for (const Case& model : cases()) {
    State state = example_state(model);
    write_huggingface_directory(root / model.name, huggingface_config(model),
                                mapped_sources(to_huggingface(model), tensors_of(state)),
                                {.max_shard_bytes = model.max_shard_bytes});
    if (model.name == "dense_causal_lm_tied") {
      for (const std::string split : {"regular", "special"}) {
        state["head.lm_head." + split + ".weight"] =
            state.at("model.embed_tokens.token_embedding." + split + ".weight");
      }
    }
    std::vector<TensorSource> expected;
    for (const auto& [name, tensor] : state) expected.push_back(tensor_source(name, tensor));
    write_safetensors(root / (model.name + ".ours.safetensors"), expected);
  }
  const std::string output = test::run_python(kOracle, {"check", root});
  for (const Case& model : cases()) EXPECT_THAT(output, HasSubstr("same " + model.name + "\n"));
}

TEST(Qwen3HuggingFace, Loads_again_what_it_exports) {
  for (const Case& model : cases()) {
    SCOPED_TRACE(model.name);
    const fs::path path = test::fresh_directory("d") / "export";
    const State state = example_state(model);
    write_huggingface_directory(path, json::object(), mapped_sources(to_huggingface(model), tensors_of(state)),
                                {.max_shard_bytes = model.max_shard_bytes});
    const HuggingFaceDirectory directory(path);
    const auto loaded = mapped_sources(from_huggingface(model, directory.names()), tensors_of(directory));
    ASSERT_GE(loaded.size(), state.size());
    for (const TensorSource& tensor : loaded) {
      if (!state.contains(tensor.name)) continue;  // a tied head, which is not written
      EXPECT_TRUE(at::equal(read_checked(tensor), state.at(tensor.name))) << tensor.name;
    }
  }
}

TEST(Qwen3HuggingFace, Reads_the_head_from_tied_embeddings_and_does_not_write_it) {
  const Case model = {"tied", dense(/*tied=*/true), kCausalLM};
  EXPECT_FALSE(to_huggingface(model).outputs().contains("lm_head.weight"));
  const at::Tensor embedding = at::arange(64 * 16).reshape({64, 16});
  const auto groups = source_groups(from_huggingface(model, {"model.embed_tokens.weight"}),
                                    tensors_of(State{{"model.embed_tokens.weight", embedding}}),
                                    {"head.lm_head.regular.weight", "head.lm_head.special.weight"});
  ASSERT_EQ(groups.size(), 1);
  const auto read = [&](const std::string& name) {
    return assembled_from_whole(groups[0].mapped.outputs.at(name), [&](const std::string&) { return embedding; });
  };
  EXPECT_TRUE(at::equal(read("head.lm_head.regular.weight"), embedding.slice(0, 0, 50)));
  EXPECT_TRUE(at::equal(read("head.lm_head.special.weight"), embedding.slice(0, 50)));
  EXPECT_TRUE(at::equal(read("model.embed_tokens.token_embedding.special.weight"), embedding.slice(0, 50)));
}

TEST(Qwen3HuggingFace, Needs_only_the_layers_that_a_stage_asks_for) {
  const Case model = {"m", moe(), kCausalLM};
  std::set<std::string> asked;
  const NamedTensors tensors{.names = {}, .find = [&](const std::string& name) -> std::optional<TensorSource> {
                               asked.insert(name);
                               return tensor_source(name, at::zeros({2, 2}));
                             }};
  (void)source_groups(from_huggingface(model, {"model.norm.weight"}), tensors,
                      {"model.layers.1.mlp.grouped_experts.down_proj.weight", "model.norm.weight"});
  EXPECT_THAT(asked, ElementsAre("model.layers.1.mlp.experts.0.down_proj.weight",
                                 "model.layers.1.mlp.experts.1.down_proj.weight",
                                 "model.layers.1.mlp.experts.2.down_proj.weight",
                                 "model.layers.1.mlp.experts.3.down_proj.weight", "model.norm.weight"));
}

TEST(Qwen3HuggingFace, Has_names_for_a_head_among_several_and_for_a_backbone_alone) {
  const StateMapper classifier =
      qwen3_dense_from_huggingface(dense(), kClassification, {"model.norm.weight"}, {.head = "heads.intent."});
  EXPECT_THAT(classifier.outputs(), Contains("heads.intent.score.weight"));
  EXPECT_THAT(qwen3_dense_from_huggingface(dense(), std::nullopt, {"norm.weight"}, {.backbone = ""}).outputs(),
              Contains("layers.1.self_attn.q_norm.weight"));
  const StateMapper both =
      add_head_from_huggingface(classifier, kCausalLM, decoder_sizes(dense()), "model.", {.head = "heads.lm."});
  EXPECT_THAT(both.outputs(), IsSupersetOf({"heads.intent.score.weight", "heads.lm.lm_head.regular.weight",
                                            "heads.lm.lm_head.special.weight"}));
  EXPECT_EQ(both.groups().size(), classifier.groups().size() + 1);
}

TEST(Qwen3HuggingFace, Gives_the_embedding_to_each_of_two_tied_heads_among_several) {
  const Qwen3DenseParameters tied = dense(/*tied=*/true);
  StateMapper decoder =
      qwen3_dense_from_huggingface(tied, kClassification, {"model.norm.weight"}, {.head = "heads.intent."});
  for (const std::string head : {"heads.a.", "heads.b."}) {
    decoder = add_head_from_huggingface(decoder, kCausalLM, decoder_sizes(tied), "model.", {.head = head});
  }
  EXPECT_THAT(decoder.inputs(), Not(Contains("lm_head.weight")));
  const std::int64_t regular = tied.split_vocab_size.at("regular"), special = tied.split_vocab_size.at("special");
  const at::Tensor embedding = at::arange((regular + special) * 4).view({regular + special, 4});
  const auto state = decoder.apply(std::map<std::string, at::Tensor>{{"model.embed_tokens.weight", embedding}});
  for (const std::string name : {"model.embed_tokens.token_embedding.", "heads.a.lm_head.", "heads.b.lm_head."}) {
    EXPECT_TRUE(at::equal(state.at(name + "regular.weight"), embedding.slice(0, 0, regular))) << name;
    EXPECT_TRUE(at::equal(state.at(name + "special.weight"), embedding.slice(0, regular))) << name;
  }
}

TEST(Qwen3HuggingFace, Lists_what_a_checkpoint_lacks_before_it_reads_a_tensor) {
  const fs::path path = test::fresh_directory("d") / "export";
  const Case model = {"moe", moe(), kCausalLM};
  std::vector<TensorSource> tensors = mapped_sources(to_huggingface(model), tensors_of(example_state(model)));
  std::erase_if(tensors, [](const TensorSource& tensor) {
    return tensor.name == "lm_head.weight" || tensor.name == "model.layers.1.mlp.experts.2.up_proj.weight";
  });
  write_huggingface_directory(path, json::object(), tensors);
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(test::message_of<StateError>(
                  [&] { (void)mapped_sources(from_huggingface(model, directory.names()), tensors_of(directory)); }),
              AllOf(HasSubstr("2 missing"), HasSubstr("'lm_head.weight'"),
                    HasSubstr("'model.layers.1.mlp.experts.2.up_proj.weight'")));
}

TEST(Qwen3HuggingFace, Names_the_tensor_whose_shape_does_not_fit_the_parameters) {
  const fs::path path = test::fresh_directory("d") / "export";
  const Case model = {"dense", dense(), kCausalLM};
  write_huggingface_directory(path, json::object(),
                              mapped_sources(to_huggingface(model), tensors_of(example_state(model))));
  const HuggingFaceDirectory directory(path);
  Qwen3DenseParameters other = dense();
  other.layer.intermediate_size = 25;
  const auto wrong = make_model({"dense", other, kCausalLM});
  EXPECT_THAT(test::message_of<StateError>([&] {
                (void)load_model_state(*wrong, qwen3_dense_from_huggingface(other, kCausalLM, directory.names()),
                                       tensors_of(directory));
              }),
              AllOf(HasSubstr("'model.layers.0.mlp.down_proj.weight'"), HasSubstr("model.safetensors"),
                    HasSubstr("[16, 25]"), HasSubstr("[16, 24]")));
}

TEST(Qwen3HuggingFace, Refuses_to_export_an_embedding_projection) {
  EXPECT_THAT(test::message_of<ConfigError>(
                  [] { (void)qwen3_dense_to_huggingface(dense(), EmbeddingHeadConfig{.embedding_dim = 8}); }),
              HasSubstr("embedding_dim = 8"));
}

}  // namespace
}  // namespace d9d::qwen3_huggingface_test
