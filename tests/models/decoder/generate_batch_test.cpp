// Decoding with a cache: equals transformers' generate(), on one rank and on the layouts for which it is built.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/models/decoder/choose_tokens.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/decoder/parallelize.h"
#include "d9d/models/families.h"
#include "d9d/testing/ranks.h"

#include "tests/support/cuda_test.h"
#include "tests/support/decoder_families.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"
#include "tests/support/tiny_blocks.h"
#include "tests/support/tolerances.h"

namespace d9d::generate_batch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int64_t>;

// What generate_batch_oracle.py has written, once.
const std::filesystem::path& oracle() {
  static const std::filesystem::path folder = [] {
    std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "d9d" / "generate_batch_oracle";
    std::filesystem::remove_all(path);
    test::run_python("tests/models/decoder/generate_batch_oracle.py", {path.string()});
    return path;
  }();
  return folder;
}

nlohmann::json expected_of(const std::string& name) {
  std::ifstream file(oracle() / (name + ".json"));
  return nlohmann::json::parse(file);
}

// The model that transformers has saved, in float64, distributed over the ranks of the context.
template <class Family>
ModulePtr<DecoderForCausalLM> load(const Family& family, const DistContext& context) {
  const HuggingFaceDirectory directory(oracle() / family.name);
  const auto parameters = family.parameters_from_huggingface(directory.read_config());
  const ModulePtr<PreNormDecoder> backbone = family.build(parameters, {});
  auto model = make_decoder_for_causal_lm(backbone);
  model->to(at::kDouble);
  parallelize_decoder(context, *backbone, {model->head.shared()});
  model->materialize(context.device());
  model->reset_parameters(/*base_seed=*/1);  // buffers
  const StateMapper mapper = family.from_huggingface(parameters, CausalLMHeadConfig{}, directory.names());
  EXPECT_TRUE(load_model_state(*model, mapper, tensors_of(directory)).unused.empty());
  return model;
}

GenerateOptions options_on(const DistContext& context) {
  return {.num_tokens = 24,
          .sequence_ranks = context.mesh(MeshDomain::kBatch).slice({"cp", "tp"}),
          .ranks = context.mesh(MeshDomain::kFlat)};
}

// Of a rank: the prompts whose place, divided by the number of ranks with prompts of their own, leaves its number.
struct Part {
  std::vector<Ids> prompts;
  std::vector<std::size_t> places;
};
Part part_of(const nlohmann::json& expected, const DistContext& context) {
  const DeviceMesh data = context.mesh(MeshDomain::kBatch).slice({"dp"});
  const auto all = expected.at("prompts").get<std::vector<Ids>>();
  Part part;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (static_cast<std::int64_t>(i) % data.num_ranks() != data.index()) continue;
    part.prompts.push_back(all[i]);
    part.places.push_back(i);
  }
  return part;
}

template <class Family>
void expect_as_transformers(const Family& family, const DistContext& context) {
  const nlohmann::json expected = expected_of(family.name);
  const auto model = load(family, context);
  const Part part = part_of(expected, context);
  GenerateOptions options = options_on(context);
  const auto greedy = generate_batch(model, part.prompts, options);
  options.stop_ids = {expected.at("stop")};
  const auto stopped = generate_batch(model, part.prompts, options);
  ASSERT_EQ(greedy.size(), part.prompts.size());
  for (std::size_t i = 0; i < part.places.size(); ++i) {
    const nlohmann::json& of_prompt = expected.at("greedy").at(part.places[i]);
    EXPECT_EQ(greedy[i].ids, of_prompt.at("ids").get<Ids>()) << family.name << " prompt " << part.places[i];
    const auto log_probs = of_prompt.at("log_probs").get<std::vector<double>>();
    ASSERT_EQ(greedy[i].log_probs.size(), log_probs.size());
    for (std::size_t t = 0; t < log_probs.size(); ++t) {  // those of transformers are rounded to float32
      EXPECT_NEAR(greedy[i].log_probs[t], log_probs[t], test::tolerance("fp32").value) << family.name << " token " << t;
    }
    EXPECT_EQ(stopped[i].ids, expected.at("stopped").at(part.places[i]).get<Ids>()) << family.name;
    EXPECT_EQ(stopped[i].log_probs.size(), stopped[i].ids.size());
  }
}

TEST(GenerateBatch, Continues_prompts_of_different_lengths_as_transformers_with_every_family) {
  testing::run_ranks(DeviceMeshParameters{}, [](const DistContext& context) {
    for_each_family([&](const auto& family) { expect_as_transformers(family, context); });
  });
}

TEST(GenerateBatch, Continues_as_transformers_on_layouts_of_up_to_four_ranks) {
  const auto dense = [](const DistContext& context) { expect_as_transformers(kQwen3Dense, context); };
  const auto experts = [](const DistContext& context) { expect_as_transformers(kQwen3MoE, context); };
  const std::vector<std::int64_t> degrees = {1, 2, 4};
  for (const std::int64_t replicas : degrees) {
    for (const std::int64_t shards : degrees) {
      for (const std::int64_t slices : {1, 2}) {  // there are two heads of keys
        DeviceMeshParameters mesh{
            .data_parallel_replicate = replicas, .data_parallel_shard = shards, .tensor_parallel = slices};
        const std::int64_t num_ranks = mesh.world_size();
        if (num_ranks == 1 || num_ranks > 4) continue;
        testing::run_ranks(mesh, dense);
        for (const std::int64_t parallel : degrees) {
          mesh.expert_parallel = parallel;
          if (num_ranks % parallel == 0) testing::run_ranks(mesh, experts);
        }
      }
    }
  }
}

template <class Body>
void on_one_rank(const Body& body) {
  testing::run_ranks(DeviceMeshParameters{},
                     [&](const DistContext& context) { body(load(kQwen3Dense, context), context); });
}

// The log-probabilities of `ids` after `prompt` by the training's forward, on the whole sequence. On the CPU, float64.
at::Tensor trained_log_probs(const ModulePtr<DecoderForCausalLM>& model, const Ids& prompt, const Ids& ids) {
  Ids tokens = prompt;
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  const at::Device device = model->head->weights.front()->local().device();
  const at::Tensor all = at::tensor(tokens, at::kLong).unsqueeze(0).to(device);
  const std::int64_t length = all.size(1) - 1;
  const SequenceShared shared{.position_ids = at::arange(length, all.options()).unsqueeze(0),
                              .hidden_states_agg_mask = std::nullopt};
  const auto output =
      model(SequenceInput{all.narrow(1, 0, length)}, DecoderForCausalLM::Shared{shared, {all.narrow(1, 1, length)}});
  const at::Tensor losses = std::get<1>(output).head.cross_entropy.squeeze(0).detach().to(at::kCPU, at::kDouble);
  return -losses.narrow(0, std::ssize(prompt) - 1, std::ssize(ids));
}

TEST(GenerateBatch, Gives_the_log_probabilities_of_the_training_forward) {
  on_one_rank([](const ModulePtr<DecoderForCausalLM>& model, const DistContext& context) {
    GenerateOptions options = options_on(context);
    options.temperature = 1.5;
    options.top_k = 20;
    options.seed = 7;
    const std::vector<Ids> prompts = {{5, 6}, {1, 2, 3, 4, 5, 6, 7}};
    const auto results = generate_batch(model, prompts, options);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const at::Tensor trained = trained_log_probs(model, prompts[i], results[i].ids);
      const at::Tensor decoded = at::tensor(results[i].log_probs, at::kDouble);
      EXPECT_LT((decoded - trained).abs().max().item<double>(), test::tolerance("fp64").value);
    }
  });
}

TEST(GenerateBatch, Draws_the_same_for_a_sequence_in_any_batch_and_on_any_layout) {
  const std::vector<Ids> prompts = {{5, 6}, {1, 2, 3}, {90}, {4, 4, 4, 4}};
  std::vector<Ids> expected;
  const auto sampled = [](const DistContext& context) {
    GenerateOptions options = options_on(context);
    options.temperature = 2.0;
    options.top_p = 0.9;
    options.seed = 11;
    options.stop_ids = {0, 1, 2, 3, 4};
    return options;
  };
  testing::run_ranks(DeviceMeshParameters{}, [&](const DistContext& context) {
    for (const auto& result : generate_batch(load(kQwen3Dense, context), prompts, sampled(context))) {
      expected.push_back(result.ids);
    }
  });
  EXPECT_NE(expected[0].size(), expected[1].size());
  const auto one_by_one = [&](const DistContext& context) {
    const auto model = load(kQwen3Dense, context);
    const DeviceMesh data = context.mesh(MeshDomain::kBatch).slice({"dp"});
    for (std::int64_t i = data.index(); i < std::ssize(prompts); i += data.num_ranks()) {
      GenerateOptions options = sampled(context);
      options.first_sequence = i;
      const auto place = static_cast<std::size_t>(i);
      EXPECT_EQ(generate_batch(model, {prompts[place]}, options).front().ids, expected[place]) << i;
    }
  };
  testing::run_ranks(DeviceMeshParameters{}, one_by_one);
  testing::run_ranks({.data_parallel_shard = 2, .tensor_parallel = 2}, one_by_one);
}

// A rank without prompts takes part in the others' forwards.
TEST(GenerateBatch, May_have_no_prompts_on_a_rank) {
  for (const std::int64_t experts : {1, 2}) {
    testing::run_ranks({.data_parallel_shard = 2, .expert_parallel = experts}, [&](const DistContext& context) {
      const nlohmann::json expected = expected_of("qwen3_moe");
      const auto prompts =
          context.is_main_process() ? std::vector<Ids>() : expected.at("prompts").get<std::vector<Ids>>();
      const auto results = generate_batch(load(kQwen3MoE, context), prompts, options_on(context));
      ASSERT_EQ(results.size(), prompts.size());
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].ids, expected.at("greedy").at(i).at("ids").get<Ids>()) << i;
      }
    });
  }
}

TEST(GenerateBatch, Tells_each_token_and_leaves_the_model_as_it_was) {
  on_one_rank([](const ModulePtr<DecoderForCausalLM>& model, const DistContext& context) {
    GenerateOptions options = options_on(context);
    std::vector<Ids> told(2);
    options.on_token = [&](std::int64_t id, std::int64_t place) {
      told.at(static_cast<std::size_t>(place)).push_back(id);
    };
    const auto results = generate_batch(model, {{1}, {2, 3}}, options);
    EXPECT_THAT(told, ElementsAre(results[0].ids, results[1].ids));
    EXPECT_TRUE(model->is_training());
    EXPECT_EQ(generate_batch(model, {{2, 3}}, options).front().ids, results[1].ids);
    EXPECT_EQ(generate(model, {2, 3}, options), results[1].ids);
    options.num_tokens = 0;
    EXPECT_TRUE(generate_batch(model, {{1}}, options).front().ids.empty());
    EXPECT_TRUE(generate_batch(model, {}, options).empty());
  });
}

// The ranks agree on the end, so that their next collectives fit.
TEST(GenerateBatch, Ends_on_all_ranks_where_a_callback_throws_on_one) {
  const auto is_ended = [](const DistContext& context, const auto& continued) {
    GenerateOptions options = options_on(context);
    options.on_token = [&](std::int64_t, std::int64_t) {
      if (context.is_main_process()) throw UsageError("enough");
    };
    if (context.is_main_process()) {
      EXPECT_EQ(test::message_of<UsageError>([&] { continued(options); }), "enough");
    } else {
      EXPECT_EQ(test::message_of<IoError>([&] { continued(options); }), "enough (rank 0)");
    }
  };
  const auto expect_ended = [&](const DistContext& context) {
    const auto model = load(kQwen3Dense, context);
    is_ended(context, [&](const GenerateOptions& options) { (void)generate_batch(model, {{1}, {2}}, options); });
    is_ended(context, [&](const GenerateOptions& options) { (void)generate(model, {1}, options); });
    is_ended(context, [&](GenerateOptions options) {
      options.max_sequence = 8;  // without a cache
      (void)generate(model, {1}, options);
    });
    EXPECT_EQ(generate_batch(model, {{5}}, options_on(context)).front().ids,
              expected_of("qwen3_dense").at("greedy").at(0).at("ids").get<Ids>());
  };
  testing::run_ranks(DeviceMeshParameters{}, expect_ended);
  testing::run_ranks({.data_parallel_shard = 2}, expect_ended);
  testing::run_ranks({.tensor_parallel = 2}, expect_ended);
}

TEST(GenerateBatch, Refuses_logits_that_are_no_numbers) {
  for (const double value : {std::nan(""), HUGE_VAL}) {
    on_one_rank([&](const ModulePtr<DecoderForCausalLM>& model, const DistContext& context) {
      model->head->weights.front()->stored().detach().select(0, 7).fill_(value);
      for (const double temperature : {0.0, 1.0}) {
        GenerateOptions options = options_on(context);
        options.temperature = temperature;
        const auto expect_refused = [](const auto& generated) {
          EXPECT_THAT(test::message_of<StateError>(generated), HasSubstr("expected logits that are numbers"));
        };
        expect_refused([&] { (void)generate_batch(model, {{1}, {2, 3}}, options); });
        options.max_sequence = 8;
        expect_refused([&] { (void)generate(model, {1}, options); });
      }
    });
  }
}

// generate() leaves the cache where the window moves.
TEST(GenerateBatch, Equals_generation_without_a_cache) {
  on_one_rank([](const ModulePtr<DecoderForCausalLM>& model, const DistContext& context) {
    class NoCache final : public TokenModel {
     public:
      explicit NoCache(const ModulePtr<DecoderForCausalLM>& model) : one_(one_piece_decoder(model)) {}
      std::vector<ModulePtr<DecoderForCausalLM>> parts() const override { return one_->parts(); }
      at::Tensor last_logits(const at::Tensor& ids, const DeviceMesh& ranks) override {
        return one_->last_logits(ids, ranks);
      }

     private:
      std::unique_ptr<TokenModel> one_;
    };
    NoCache without(model);
    GenerateOptions options = options_on(context);
    options.temperature = 1.0;
    EXPECT_EQ(generate(model, {7, 8, 9}, options), generate(without, {7, 8, 9}, options));
    options.max_sequence = 8;
    EXPECT_EQ(generate(model, {7, 8, 9}, options), generate(without, {7, 8, 9}, options));
    options.max_sequence = 0;
    options.num_tokens = 80;  // of a model with 64 positions
    EXPECT_EQ(generate(model, {7, 8, 9}, options).size(), 80U);
    const Ids expected = generate(model, {7, 8, 9}, options);
    options.max_sequence = 70;
    EXPECT_EQ(generate(model, {7, 8, 9}, options), expected);
  });
}

TEST(GenerateBatch, Is_refused_on_all_ranks_for_the_prompt_of_one) {
  testing::run_ranks({.data_parallel_shard = 2}, [](const DistContext& context) {
    const auto model = load(kQwen3Dense, context);
    const auto refusal = [&](const Ids& of_last) {
      return test::message_of<Error>([&] {
        const std::vector<Ids> prompts = {{1}, context.is_main_process() ? Ids{1} : of_last};
        (void)generate_batch(model, prompts, options_on(context));
      });
    };
    EXPECT_THAT(refusal({}), HasSubstr("a prompt of at least one token"));
    EXPECT_THAT(refusal({96}), HasSubstr("ids below the model's vocabulary of 96, got 96"));
    EXPECT_THAT(refusal(Ids(41, 1)), HasSubstr("with num_tokens = 24 at most 64 positions, got one of 41"));
    EXPECT_NO_THROW((void)generate_batch(model, {Ids(40, 1)}, options_on(context)));
    GenerateOptions endless = options_on(context);
    for (const std::int64_t num_tokens : {std::int64_t{1} << 40, std::numeric_limits<std::int64_t>::max()}) {
      endless.num_tokens = num_tokens;
      EXPECT_THAT(test::message_of<ConfigError>([&] {
                    (void)generate_batch(model, {{1, 2}}, endless);
                  }),
                  HasSubstr("at most 64 positions, got one of 2"));
    }
  });
}

TEST(GenerateBatch, Is_refused_with_context_parallelism) {
  testing::run_ranks({.context_parallel_shard = 2}, [](const DistContext& context) {
    const auto model = load(kQwen3Dense, context);
    EXPECT_THAT(test::message_of<ConfigError>([&] { (void)generate_batch(model, {{1}}, options_on(context)); }),
                HasSubstr("without context parallelism"));
    EXPECT_EQ(generate(model, {5}, options_on(context)),
              expected_of("qwen3_dense").at("greedy").at(0).at("ids").get<Ids>());
  });
}

// A model of the family with random weights.
template <class Family>
ModulePtr<DecoderForCausalLM> random_model(const Family& family, at::ScalarType dtype, at::Device device) {
  const auto sizes = test::small_parameters<typename Family::Parameters>(
      {.hidden_size = 32, .num_attention_heads = 4, .num_key_value_heads = 2, .max_position_ids = 64});
  auto model = make_decoder_for_causal_lm(family.build(sizes, {}));
  model->to(dtype);
  model->materialize(device);
  model->reset_parameters(/*base_seed=*/3);
  return model;
}

const std::vector<Ids> kPrompts = {{5, 6}, {1, 2, 3, 4, 5, 6, 7}, {9}, {11, 12, 13}};

class GenerateBatchCuda : public test::CudaTest {};

TEST_F(GenerateBatchCuda, Continues_as_on_a_cpu_with_every_family) {
  for_each_family([&](const auto& family) {
    for (const double temperature : {0.0, 1.0}) {
      GenerateOptions options{.num_tokens = 30, .temperature = temperature};
      if (temperature > 0) options.top_k = 10, options.top_p = 0.9;
      const auto expected = generate_batch(random_model(family, at::kDouble, at::kCPU), kPrompts, options);
      const auto results = generate_batch(random_model(family, at::kDouble, at::kCUDA), kPrompts, options);
      for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i].ids, expected[i].ids) << family.name;
    }
  });
}

// Sequences that end one after the other, so that forwards are recorded for several numbers of them, against each
// alone.
TEST_F(GenerateBatchCuda, Ends_sequences_one_after_the_other) {
  const auto model = random_model(kQwen3Dense, at::kDouble, at::kCUDA);
  std::vector<Ids> prompts;
  for (std::int64_t i = 0; i < 12; ++i) prompts.push_back({i, i + 3, i % 5});
  GenerateOptions options{.num_tokens = 40, .temperature = 1.5, .seed = 5, .stop_ids = {0, 7}};
  const auto together = generate_batch(model, prompts, options);
  std::set<std::size_t> lengths;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    options.first_sequence = static_cast<std::int64_t>(i);
    const auto alone = generate_batch(model, {prompts[i]}, options).front();
    EXPECT_EQ(together[i].ids, alone.ids) << i;
    ASSERT_EQ(together[i].log_probs.size(), alone.log_probs.size());
    for (std::size_t t = 0; t < alone.log_probs.size(); ++t) {
      EXPECT_NEAR(together[i].log_probs[t], alone.log_probs[t], test::tolerance("fp64").value);
    }
    lengths.insert(alone.ids.size());
  }
  EXPECT_GT(lengths.size(), 5U);
}

// Decoding attends with another kernel than training. Neither errs more than the other.
TEST_F(GenerateBatchCuda, Errs_no_more_than_the_training_forward_in_bfloat16) {
  for_each_family([&](const auto& family) {
    if (family.has_experts) return;  // a rounding may choose other experts
    const auto model = random_model(family, at::kBFloat16, at::kCUDA);
    const auto exact = random_model(family, at::kDouble, at::kCPU);  // of the same, rounded weights
    for (const auto& [name, parameter] : exact->named_parameters()) {
      const at::NoGradGuard no_grad;
      parameter->stored().copy_(parameter->stored().to(at::kBFloat16));
    }
    const auto results = generate_batch(model, kPrompts, {.num_tokens = 50, .temperature = 1.0});
    double generated = 0, trained = 0;  // sums of squared errors
    for (std::size_t i = 0; i < kPrompts.size(); ++i) {
      const at::Tensor reference = trained_log_probs(exact, kPrompts[i], results[i].ids);
      const at::Tensor decoded = at::tensor(results[i].log_probs, at::kDouble);
      generated += (decoded - reference).square().sum().template item<double>();
      trained +=
          (trained_log_probs(model, kPrompts[i], results[i].ids) - reference).square().sum().template item<double>();
    }
    EXPECT_GT(trained, 0);
    EXPECT_LT(std::sqrt(generated / trained), test::tolerance("bf16 error ratio").value) << family.name;
  });
}

TEST(ChooseTokens, Draws_from_the_probabilities_of_transformers) {
  for (const nlohmann::json& expected : expected_of("choices")) {
    const auto matrix = [&](const char* name) {
      const auto rows = expected.at(name).get<std::vector<std::vector<double>>>();
      std::vector<at::Tensor> tensors;
      for (const auto& row : rows) tensors.push_back(at::tensor(row, at::kDouble));
      return at::stack(tensors);
    };
    const TokenChoice choice{
        .temperature = expected.at("temperature"), .top_k = expected.at("top_k"), .top_p = expected.at("top_p")};
    const at::Tensor logits = matrix("logits"), probabilities = matrix("probabilities");
    EXPECT_LT((token_probabilities(logits, choice) - probabilities).abs().max().item<double>(), 1e-12)
        << expected.dump();
    // At equal distances, so that each token is drawn as often as its probability says.
    constexpr std::int64_t kDraws = 1000;
    const at::Tensor row = logits.narrow(0, 0, 1).expand({kDraws, -1});
    const at::Tensor points = (at::arange(kDraws, at::kDouble) + 0.5) / kDraws;
    const at::Tensor shares =
        at::bincount(choose_tokens(row, choice, points), {}, logits.size(1)).to(at::kDouble) / kDraws;
    EXPECT_LT((shares - probabilities[0]).abs().max().item<double>(), 1.0 / kDraws) << expected.dump();
  }
}

TEST(ChooseTokens, Never_draws_a_token_without_probability) {
  const at::Tensor logits = at::tensor({-INFINITY, 0.0, -INFINITY, 0.0, -INFINITY}, at::kDouble).expand({3, -1});
  const at::Tensor draws = at::tensor({0.0, 0.5, std::nextafter(1.0, 0.0)}, at::kDouble);
  EXPECT_TRUE(at::equal(choose_tokens(logits, {.temperature = 1.0}, draws), at::tensor({1, 3, 3}, at::kLong)));
}

TEST(ChooseTokens, Takes_the_likeliest_token_at_the_lowest_temperature) {
  const at::Tensor logits = at::tensor({-3.0, 40.0, 39.0, -INFINITY}, at::kDouble).expand({2, -1});
  const at::Tensor draws = at::tensor({0.0, std::nextafter(1.0, 0.0)}, at::kDouble);
  for (const double temperature : {1e-9, 1e-320}) {
    EXPECT_TRUE(at::equal(choose_tokens(logits, {.temperature = temperature, .top_k = 3, .top_p = 0.9}, draws),
                          at::tensor({1, 1}, at::kLong)));
  }
}

TEST(ChooseTokens, Refuses_values_out_of_range) {
  for (const TokenChoice& choice :
       {TokenChoice{.temperature = -1}, TokenChoice{.temperature = INFINITY}, TokenChoice{.top_k = -1},
        TokenChoice{.top_p = 0}, TokenChoice{.top_p = 1.5}, TokenChoice{.top_k = 5}, TokenChoice{.top_p = 0.5}}) {
    EXPECT_THROW(check_token_choice(choice, "test"), ConfigError);
  }
}

}  // namespace
}  // namespace d9d::generate_batch_test
