// What CausalLMProvider exports of a model with adapters, and reads from such exports.
// tests/oracle/peft_parity_test.cpp compares with Hugging Face peft, tests/program/adapters_test.py runs jobs.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/loop/language_model/causal_lm_provider.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/models/families.h"
#include "d9d/peft/inject.h"
#include "d9d/peft/merge.h"
#include "d9d/testing/ranks.h"

#include "tests/support/decoder_families.h"
#include "tests/support/io_faults.h"

namespace d9d::adapter_export_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;
using Tensors = std::map<std::string, at::Tensor>;

constexpr const char* kEverything = ".*_proj|.*router\\.gate|.*embed_tokens|head";

LoraConfig lora(const std::string& pattern, LoraParams params = {.r = 2, .alpha = 3.0}) {
  return {.module_name_pattern = pattern, .params = params};
}
FullTuneConfig tune(const std::string& pattern) { return {.module_name_pattern = pattern}; }
StackConfig stack(std::vector<PeftConfig> methods) { return {.methods = std::move(methods)}; }

template <class Parameters>
CausalLMProvider<Parameters> provider_of(const ModelFamily<Parameters>& family, const PeftConfig& method,
                                         ExportedAdapters format, const test::SmallDecoder& small = {}) {
  const auto sizes = test::small_parameters<Parameters>(small);
  return {
      family, {.model = {.written = sizes}, .adapters = method, .exported = {.adapters = format}}, sizes, {}, "base"};
}

// The model in one piece, with adapters that change something.
template <class Parameters>
std::shared_ptr<Module> build(CausalLMProvider<Parameters>& provider) {
  const DistContext context({.world = one_rank_world()});
  const auto model = provider.initialize_model_stage(context, {}).module;
  (void)inject_peft(*provider.adapters(), *model);
  for (const auto& [name, parameter] : model->named_parameters()) parameter->set_init(init::normal(0.5));
  model->materialize(at::kCPU);
  model->reset_parameters(/*base_seed=*/5);
  return model;
}

Tensors tensors_in(const ModelExport& exported, const Module& model) {
  Tensors tensors;
  for (const TensorSource& source : mapped_sources(exported.mapper, tensors_of(model.state_dict()))) {
    tensors.emplace(source.name, source.read().clone());
  }
  return tensors;
}

template <class Parameters>
json config_of(CausalLMProvider<Parameters> provider) {
  const ModelExport exported = provider.prepare_export(*build(provider));
  EXPECT_FALSE(exported.files.contains("config.json"));
  return json::parse(exported.files.at("adapter_config.json"));
}

json config_of(const PeftConfig& method) {
  return config_of(provider_of(kQwen3Dense, method, ExportedAdapters::kPeft));
}

TEST(AdapterExport, Merges_on_the_way_what_merge_peft_merges_in_memory) {
  for_each_family([](const auto& family) {
    SCOPED_TRACE(family.name);
    auto provider = provider_of(family, lora(kEverything), ExportedAdapters::kMerged);
    const auto model = build(provider);
    const Tensors on_the_way = tensors_in(provider.prepare_export(*model), *model);
    MergedPeft merged = merge_peft(*model);
    const Tensors in_memory = tensors_in(provider.prepare_export(*model), *model);
    ASSERT_EQ(on_the_way.size(), in_memory.size());
    for (const auto& [name, tensor] : in_memory) EXPECT_TRUE(at::equal(on_the_way.at(name), tensor)) << name;
    merged.unmerge();
    EXPECT_FALSE(at::equal(model->state_dict().at("model.layers.0.self_attn.q_proj.weight"),
                           in_memory.at("model.layers.0.self_attn.q_proj.weight")));
  });
}

at::Tensor joined(const Tensors& tensors, const std::string& prefix) {
  return at::cat({tensors.at(prefix + ".regular.weight"), tensors.at(prefix + ".added.weight")});
}

TEST(AdapterExport, Unties_what_an_adapter_of_a_tied_head_or_embedding_makes_two) {
  for (const char* const adapted : {"head", "model\\.embed_tokens", kEverything}) {
    SCOPED_TRACE(adapted);
    auto provider = provider_of(kQwen3Dense, lora(adapted), ExportedAdapters::kMerged, {.ties_embeddings = true});
    const auto model = build(provider);
    const ModelExport exported = provider.prepare_export(*model);
    EXPECT_EQ(json::parse(exported.files.at("config.json")).at("tie_word_embeddings"), false);
    const auto state = model->state_dict();
    at::Tensor embedding = joined(state, "model.embed_tokens.token_embedding"), head = embedding;
    if (state.contains("head.lora_A.weight")) {
      head = head + joined(state, "head.lora_B").matmul(state.at("head.lora_A.weight")) * 1.5;
    }
    if (state.contains("model.embed_tokens.lora_B.weight")) {
      const at::Tensor& b = state.at("model.embed_tokens.lora_B.weight");
      embedding = embedding + joined(state, "model.embed_tokens.lora_A").matmul(b.t()) * 1.5;
    }
    const Tensors tensors = tensors_in(exported, *model);
    EXPECT_TRUE(at::allclose(tensors.at("lm_head.weight"), head, 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(tensors.at("model.embed_tokens.weight"), embedding, 1e-6, 1e-6));
  }
  auto provider = provider_of(kQwen3Dense, lora(".*q_proj"), ExportedAdapters::kMerged, {.ties_embeddings = true});
  EXPECT_EQ(json::parse(provider.prepare_export(*build(provider)).files.at("config.json")).at("tie_word_embeddings"),
            true);
}

TEST(AdapterExport, Has_own_names_of_an_untied_model_by_default) {
  auto provider = provider_of(kQwen3Dense, lora("head"), ExportedAdapters::kMerged, {.ties_embeddings = true});
  const auto model = build(provider);
  const auto state = model->state_dict();
  const Tensors tensors = tensors_in(AnyModelProvider().prepare_export(*model), *model);
  const at::Tensor embedding = joined(state, "model.embed_tokens.token_embedding");
  const at::Tensor term = joined(state, "head.lora_B").matmul(state.at("head.lora_A.weight")) * 1.5;
  EXPECT_TRUE(at::equal(joined(tensors, "model.embed_tokens.token_embedding"), embedding));
  EXPECT_TRUE(at::allclose(joined(tensors, "head.lm_head"), embedding + term, 1e-6, 1e-6));
  EXPECT_FALSE(tensors.contains("head.lora_A.weight"));
}

// The last stage of a tied model has the embedding for its head alone, and no adapter of it.
TEST(AdapterExport, Is_the_same_for_all_stages_of_a_pipeline) {
  auto provider =
      provider_of(kQwen3Dense, lora("model\\.embed_tokens"), ExportedAdapters::kMerged, {.ties_embeddings = true});
  const DistContext context({.world = one_rank_world()});
  const auto inputs_of_stage = [&](std::int64_t index) {
    const auto stage = provider.initialize_model_stage(context, {.num_stages = 2, .current_stage = index}).module;
    (void)inject_peft_into_stage(*provider.adapters(), *stage);
    return provider.prepare_export(*stage).mapper.inputs();
  };
  EXPECT_EQ(inputs_of_stage(0), inputs_of_stage(1));
  EXPECT_TRUE(inputs_of_stage(1).contains("model.embed_tokens.lora_B.weight"));
}

TEST(AdapterExport, For_peft_of_a_merged_model_is_refused) {
  auto provider = provider_of(kQwen3Dense, lora(".*_proj"), ExportedAdapters::kPeft);
  const auto model = build(provider);
  const MergedPeft merged = merge_peft(*model);
  EXPECT_THAT([&] { (void)provider.prepare_export(*model); }, ThrowsMessage<ConfigError>(HasSubstr("unmerge()")));
}

TEST(AdapterExport, Has_one_adapter_for_each_expert) {
  auto provider = provider_of(kQwen3MoE, lora(".*grouped_experts.*_proj"), ExportedAdapters::kPeft);
  const auto model = build(provider);
  const Tensors tensors = tensors_in(provider.prepare_export(*model), *model);
  EXPECT_EQ(tensors.size(), 4 * 4 * 3 * 2);  // layers, experts, matrices, A and B
  const std::string linear = "model.layers.3.mlp.grouped_experts.up_proj",
                    there = "base_model.model.model.layers.3.mlp.";
  const auto state = model->state_dict();
  for (const auto& [ours, theirs] :
       {std::pair{".lora_A.weight", ".up_proj.lora_A.weight"}, std::pair{".lora_B.weight", ".up_proj.lora_B.weight"}}) {
    for (std::int64_t expert = 0; expert < 4; ++expert) {
      EXPECT_TRUE(at::equal(tensors.at(cat(there, "experts.", expert, theirs)), state.at(linear + ours)[expert].t()));
    }
  }
}

TEST(AdapterExport, Has_those_of_head_embedding_and_router_in_one_piece) {
  auto provider = provider_of(kQwen3MoE, lora(kEverything), ExportedAdapters::kPeft, {.ties_embeddings = true});
  const auto model = build(provider);
  const Tensors state = model->state_dict(), tensors = tensors_in(provider.prepare_export(*model), *model);
  const auto expect = [&](const std::string& name, const at::Tensor& expected) {
    EXPECT_TRUE(at::equal(tensors.at("base_model.model." + name), expected)) << name;
  };
  expect("lm_head.lora_A.weight", state.at("head.lora_A.weight"));
  expect("lm_head.lora_B.weight", joined(state, "head.lora_B"));
  expect("model.embed_tokens.lora_embedding_A", joined(state, "model.embed_tokens.lora_A").t());
  expect("model.embed_tokens.lora_embedding_B", state.at("model.embed_tokens.lora_B.weight"));
  expect("model.layers.3.mlp.gate.lora_A.weight", state.at("model.layers.3.mlp.router.gate.lora_A.weight"));
  EXPECT_THAT(config_of(provider).at("target_modules"),
              AllOf(Contains("embed_tokens"), Contains("lm_head"), Contains("gate")));
}

TEST(AdapterExport, Says_rank_alpha_and_targets) {
  const json config = config_of(lora(".*[qv]_proj", {.r = 2, .alpha = 3.0, .dropout = 0.25}));
  EXPECT_EQ(config.at("peft_type"), "LORA");
  EXPECT_EQ(config.at("r"), 2);
  EXPECT_TRUE(config.at("lora_alpha").is_number_integer());
  EXPECT_EQ(config.at("lora_alpha"), 3);
  EXPECT_EQ(config.at("lora_dropout"), 0.25);
  EXPECT_EQ(config.at("use_rslora"), false);
  EXPECT_EQ(config.at("base_model_name_or_path"), "base");
  EXPECT_EQ(config.at("target_modules"), json({"q_proj", "v_proj"}));
  EXPECT_TRUE(config.at("modules_to_save").is_null());
  EXPECT_EQ(config_of(lora(".*\\.1\\.self_attn\\.q_proj")).at("target_modules"),  // not all of this name
            json({"model.layers.1.self_attn.q_proj"}));
}

TEST(AdapterExport, Says_rslora_as_alpha_where_experts_are_joined) {
  const LoraParams params{.r = 4, .alpha = 6.0, .use_rslora = true};
  EXPECT_EQ(config_of(lora(".*q_proj", params)).at("use_rslora"), true);
  const json joined = config_of(provider_of(kQwen3MoE, lora(".*_proj", params), ExportedAdapters::kPeft));
  EXPECT_EQ(joined.at("use_rslora"), false);
  EXPECT_EQ(joined.at("lora_alpha"), 12);
  EXPECT_EQ(config_of(lora(".*q_proj", {.r = 4, .alpha = 1e19})).at("lora_alpha"), 1e19);  // no int64
}

TEST(AdapterExport, Has_what_is_trained_beside_adapters) {
  auto provider = provider_of(kQwen3Dense, stack({lora(".*q_proj"), tune("model\\.norm")}), ExportedAdapters::kPeft);
  const auto model = build(provider);
  const ModelExport exported = provider.prepare_export(*model);
  EXPECT_TRUE(at::equal(tensors_in(exported, *model).at("base_model.model.model.norm.weight"),
                        model->state_dict().at("model.norm.weight")));
  EXPECT_EQ(json::parse(exported.files.at("adapter_config.json")).at("modules_to_save"), json({"model.norm"}));
  EXPECT_THAT(exported.warnings, ElementsAre(HasSubstr("vLLM refuses adapters with modules_to_save")));
}

TEST(AdapterExport, Warns_of_what_peft_does_not_take) {
  const auto warnings_of = [](const std::string& pattern, const test::SmallDecoder& sizes) {
    auto provider = provider_of(kQwen3MoE, lora(pattern), ExportedAdapters::kPeft, sizes);
    return provider.prepare_export(*build(provider)).warnings;
  };
  EXPECT_THAT(warnings_of(".*_proj", {}), IsEmpty());
  EXPECT_THAT(warnings_of(".*_proj", {.num_dense_layers = 1}),
              Contains(HasSubstr("ignores the adapter of model.layers.0.mlp.down_proj")));
  EXPECT_THAT(warnings_of(".*gate_proj", {}), Contains(HasSubstr("gate_proj and up_proj")));
  EXPECT_THAT(warnings_of("head", {}), ElementsAre(HasSubstr("vLLM takes adapters of lm_head")));
  EXPECT_THAT(
      warnings_of(".*embed_tokens", {.ties_embeddings = true}),
      ElementsAre(HasSubstr("vLLM"), HasSubstr("merge_and_unload() of peft adds the adapter of model.embed_tokens")));
}

TEST(AdapterExport, Has_magnitudes_of_dora_in_float32_beside_narrow_factors) {
  const DoraConfig dora{.module_name_pattern = ".*q_proj", .params = {.r = 2, .alpha = 3.0}};
  const auto sizes = test::small_parameters<Qwen3DenseParameters>({});
  CausalLMProvider provider(kQwen3Dense,
                            {.model = {.written = sizes},
                             .dtype = Dtype::kBFloat16,
                             .adapters = dora,
                             .exported = {.adapters = ExportedAdapters::kPeft, .dtype = Dtype::kBFloat16}},
                            sizes, {}, "base");
  const auto model = build(provider);
  const std::string module = "base_model.model.model.layers.0.self_attn.q_proj.";
  const Tensors tensors = tensors_in(provider.prepare_export(*model), *model);
  EXPECT_EQ(tensors.at(module + "lora_magnitude_vector").scalar_type(), at::kFloat);
  EXPECT_EQ(tensors.at(module + "lora_A.weight").scalar_type(), at::kBFloat16);
  EXPECT_EQ(config_of(dora).at("use_dora"), true);
  EXPECT_EQ(config_of(lora(".*q_proj")).at("use_dora"), false);
}

TEST(AdapterExport, Is_refused_where_the_format_cannot_say_it) {
  const auto error_of = [](const PeftConfig& method) {
    return [method] { (void)provider_of(kQwen3Dense, method, ExportedAdapters::kPeft); };
  };
  EXPECT_THAT(error_of(stack({lora(".*q_proj"), lora(".*k_proj", {.r = 3, .alpha = 4.5})})),
              ThrowsMessage<ConfigError>(HasSubstr("one r, alpha and use_rslora")));
  EXPECT_THAT(error_of(stack({lora(".*q_proj"), DoraConfig{".*k_proj", {.r = 2, .alpha = 3.0}}})),
              ThrowsMessage<ConfigError>(HasSubstr("by lora or by dora alone")));
  EXPECT_THAT(error_of(stack({lora(".*q_proj"), tune(".*q_proj")})),
              ThrowsMessage<ConfigError>(HasSubstr("got both for 'model.layers.0.self_attn.q_proj'")));
  EXPECT_THAT(error_of(stack({lora(".*q_proj"), tune("head")})),
              ThrowsMessage<ConfigError>(HasSubstr("'head.lm_head.regular.weight', which full_tune trains")));
  EXPECT_THAT(error_of(tune(".*norm")), ThrowsMessage<ConfigError>(HasSubstr("a model without them")));
  EXPECT_THAT(
      [] {
        (void)CausalLMProvider(kQwen3Dense, {.exported = {.adapters = ExportedAdapters::kPeft}},
                               test::small_parameters<Qwen3DenseParameters>({}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("there is nothing to export")));
}

// A folder with what the provider exports, whose configuration may be changed.
template <class Parameters>
std::filesystem::path written(CausalLMProvider<Parameters>& provider, const Module& model, const json& changes = {}) {
  const auto folder = test::fresh_directory("adapters");
  const ModelExport exported = provider.prepare_export(model);
  json config = json::parse(exported.files.at("adapter_config.json"));
  config.update(changes.is_null() ? json::object() : changes);
  std::ofstream(folder / "adapter_config.json") << config;
  std::vector<TensorSource> tensors = mapped_sources(exported.mapper, tensors_of(model.state_dict()));
  write_safetensors(folder / "adapter_model.safetensors", tensors);
  return folder;
}

TEST(AdapterImport, Reads_what_was_exported) {
  for_each_family([](const auto& family) {
    SCOPED_TRACE(family.name);
    auto provider = provider_of(family, stack({lora(kEverything), tune("model\\.norm")}), ExportedAdapters::kPeft,
                                {.ties_embeddings = family.name == std::string("qwen3_dense")});
    const auto model = build(provider);
    const PeftFolder folder(written(provider, *model));
    const StateMapper mapper = provider.map_source_adapters(folder, *model);
    const auto sources = mapped_sources(mapper, folder.tensors());
    EXPECT_FALSE(sources.empty());
    for (const TensorSource& source : sources) {
      EXPECT_TRUE(at::equal(source.read(), model->state_dict().at(source.name))) << source.name;
    }
    std::set<std::string> expected = {"model.norm.weight"};
    for (const auto& [name, parameter] : model->named_parameters()) {
      if (is_adapter_parameter(name)) expected.insert(name);
    }
    EXPECT_EQ(mapper.outputs(), expected);
  });
}

TEST(AdapterImport, Refuses_what_is_not_the_jobs) {
  auto theirs = provider_of(kQwen3Dense, lora(".*[qk]_proj"), ExportedAdapters::kPeft);
  const auto model = build(theirs);
  const auto error_of = [&](const PeftConfig& method, const json& changes = {}) {
    return [&, method, changes] {
      auto ours = provider_of(kQwen3Dense, method, ExportedAdapters::kPeft);
      (void)ours.map_source_adapters(PeftFolder(written(theirs, *model, changes)), *model);
    };
  };
  EXPECT_NO_THROW(error_of(lora(".*[qk]_proj"))());
  EXPECT_NO_THROW(error_of(lora(".*[qk]_proj", {.r = 2, .alpha = 6.0}), {{"alpha_pattern", {{".*_proj", 6.0}}}})());
  EXPECT_THAT(error_of(lora(".*[qk]_proj", {.r = 2, .alpha = 6.0})),
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("scale 3"), HasSubstr("scale 1.5"))));
  EXPECT_THAT(error_of(lora(".*[qk]_proj", {.r = 4, .alpha = 6.0})), ThrowsMessage<ConfigError>(HasSubstr("rank 4")));
  EXPECT_THAT(error_of(lora(".*[qkv]_proj")),
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("missing"), HasSubstr("v_proj.lora_A"), HasSubstr("Narrow"))));
  EXPECT_THAT(error_of(lora(".*q_proj")),
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("k_proj.lora_A"), HasSubstr("Widen"))));
  for (const json& changes :
       {json{{"peft_type", "IA3"}}, json{{"use_dora", true}}, json{{"bias", "all"}},
        json{{"alora_invocation_tokens", {1, 2}}}, json{{"kasa_config", {{"beta", 1}}}},
        json{{"init_lora_weights", "pissa_niter_4"}}, json{{"init_lora_weights", "olora"}}, json{{"r", 2.7}},
        json{{"rank_pattern", {{"q_proj", 2.5}}}}, json{{"alpha_pattern", json::array({3})}}}) {
    const bool is_pattern = changes.begin().key() == "rank_pattern";
    EXPECT_THAT(error_of(lora(".*[qk]_proj"), changes),
                ThrowsMessage<ConfigError>(HasSubstr(is_pattern ? "q_proj" : changes.begin().key())));
  }
  for (const json& init : {json(true), json("gaussian"), json("orthogonal"), json("eva")}) {
    EXPECT_NO_THROW(error_of(lora(".*[qk]_proj"), {{"init_lora_weights", init}})());
  }
  EXPECT_THAT(error_of(lora(".*[qk]_proj"), {{"rank_pattern", {{"(", 2}}}}),
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("rank_pattern"), HasSubstr("adapter_config.json"),
                                               HasSubstr("a regular expression"))));
  EXPECT_THAT(error_of(lora(".*[qk]_proj"), {{"r", "two"}}),
              ThrowsMessage<ConfigError>(HasSubstr("another type for r")));
  EXPECT_THAT(error_of(lora(".*[qk]_proj"), {{"alpha_pattern", {{"q_proj", "3"}}}}),
              ThrowsMessage<ConfigError>(HasSubstr("another type for alpha_pattern of 'q_proj'")));
  EXPECT_THAT(error_of(lora(".*[qk]_proj"), {{"rank_pattern", {{"q_proj", 0}}}}),
              ThrowsMessage<ConfigError>(HasSubstr("rank_pattern of 'q_proj' > 0")));
  EXPECT_THAT(error_of(lora(".*[qk]_proj"), {{"lora_alpha", -3}}),
              ThrowsMessage<ConfigError>(HasSubstr("lora_alpha > 0")));
  EXPECT_THAT(error_of(lora(".*[qk]_proj"), {{"lora_alpha", nullptr}}),  // 8, as peft reads it
              ThrowsMessage<ConfigError>(HasSubstr("where alpha is 8")));
  EXPECT_THAT([] { (void)PeftFolder("nowhere"); }, ThrowsMessage<IoError>(HasSubstr("nowhere")));
}

TEST(AdapterImport, Names_the_file_of_a_tensor_of_another_shape) {
  auto provider = provider_of(kQwen3Dense, lora(".*q_proj"), ExportedAdapters::kPeft);
  const auto model = build(provider);
  const auto folder = written(provider, *model);
  const std::string name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  std::vector<TensorSource> tensors;
  const SafetensorsFile file(folder / "adapter_model.safetensors");
  for (const auto& [each, entry] : file.entries()) {
    tensors.push_back(tensor_source(each, each == name ? at::zeros({3, 16}) : file.tensor(each).clone()));
  }
  write_safetensors(folder / "adapter_model.safetensors", tensors);
  const PeftFolder source(folder);
  const auto load = [&] {
    (void)load_model_state(*model, provider.map_source_adapters(source, *model), source.tensors(),
                           {.may_be_missing = ".*"});
  };
  EXPECT_THAT(load, ThrowsMessage<StateError>(AllOf(HasSubstr(name), HasSubstr("[3, 16]"),
                                                    HasSubstr((folder / "adapter_model.safetensors").string()))));
}

// Of experts whose gate and up share an adapter, in the layout of tests/oracle/peft_oracle.py: A [experts * 4, in],
// with row 4 e + k, and b [out, 4, experts].
Tensors read_joined(const at::Tensor& b, const LoraParams& params) {
  auto provider = provider_of(kQwen3MoE, lora(".*(gate|up)_proj", params), ExportedAdapters::kPeft);
  const auto folder = test::fresh_directory("adapters");
  std::ofstream(folder / "adapter_config.json")
      << json{{"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 6}, {"target_parameters", {"mlp.experts.gate_up_proj"}}};
  std::vector<TensorSource> tensors;
  for (const int layer : {0, 1, 2, 3}) {
    const std::string name = cat("base_model.model.model.layers.", layer, ".mlp.experts.");
    tensors.push_back(tensor_source(name + "lora_A.weight", at::arange(16.0 * 16).view({16, 16})));
    tensors.push_back(tensor_source(name + "lora_B.weight", b.flatten(1)));
  }
  write_safetensors(folder / "adapter_model.safetensors", tensors);
  const PeftFolder source(folder);
  Tensors read;
  for (const TensorSource& each : mapped_sources(provider.map_source_adapters(source, Module()), source.tensors())) {
    if (const std::string first = "model.layers.0.mlp.grouped_experts."; each.name.starts_with(first)) {
      read.emplace(each.name.substr(first.size()), each.read().clone());
    }
  }
  return read;
}

const at::Tensor kRows = at::arange(16.0 * 16).view({4, 4, 16});  // of A: expert, feature, in

TEST(AdapterImport, Splits_joined_gate_and_up_where_each_has_its_part) {
  at::Tensor b = at::zeros({24, 4, 4});
  b.narrow(0, 0, 12).narrow(1, 0, 2).fill_(1.0);
  b.narrow(0, 12, 12).narrow(1, 2, 2).fill_(2.0);
  const LoraParams params{.r = 2, .alpha = 3.0};
  const Tensors read = read_joined(b, params);
  EXPECT_TRUE(at::equal(read.at("gate_proj.lora_B.weight"), at::full({4, 2, 12}, 1.0)));
  EXPECT_TRUE(at::equal(read.at("up_proj.lora_B.weight"), at::full({4, 2, 12}, 2.0)));
  EXPECT_TRUE(at::equal(read.at("gate_proj.lora_A.weight"), kRows.narrow(1, 0, 2).transpose(1, 2)));
  EXPECT_TRUE(at::equal(read.at("up_proj.lora_A.weight"), kRows.narrow(1, 2, 2).transpose(1, 2)));
  b[0][3][1] = 1.0;
  EXPECT_THAT([&] { read_joined(b, params); }, ThrowsMessage<ConfigError>(HasSubstr("all of which both use")));
}

TEST(AdapterImport, Refuses_joined_gate_and_up_of_which_one_has_no_rows) {
  for (const std::int64_t rows : {0, 1, 23}) {
    EXPECT_THAT(
        [&] {
          read_joined(at::zeros({rows, 4, 4}), {.r = 4, .alpha = 6.0});
        },
        ThrowsMessage<ConfigError>(HasSubstr("a B [2 * out, rank * experts]")));
  }
}

TEST(AdapterImport, Gives_joined_gate_and_up_the_whole_rank_where_both_use_it) {
  const at::Tensor b = at::arange(24.0 * 16).view({24, 4, 4});
  const Tensors read = read_joined(b, {.r = 4, .alpha = 6.0});
  EXPECT_TRUE(at::equal(read.at("gate_proj.lora_B.weight"), b.narrow(0, 0, 12).permute({2, 1, 0})));
  EXPECT_TRUE(at::equal(read.at("up_proj.lora_B.weight"), b.narrow(0, 12, 12).permute({2, 1, 0})));
  for (const char* const name : {"gate_proj.lora_A.weight", "up_proj.lora_A.weight"}) {
    EXPECT_TRUE(at::equal(read.at(name), kRows.transpose(1, 2))) << name;
  }
}

}  // namespace
}  // namespace d9d::adapter_export_test
