#include "d9d/models/decoder/generate.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/load_model_state.h"
#include "d9d/models/decoder/generate_text.h"
#include "d9d/models/qwen3_dense/huggingface.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/tokenizer/chat/encode_chat.h"
#include "d9d/tokenizer/unicode/utf8.h"

#include "tests/support/block_oracle.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::generate_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A model that transformers has saved.
ModulePtr<DecoderForCausalLM> load_model(const std::filesystem::path& folder) {
  const HuggingFaceDirectory directory(folder);
  const auto parameters = qwen3_dense_parameters_from_huggingface(directory.read_config());
  auto model = test::initialized(make_decoder_for_causal_lm(test::make_backbone(parameters)));
  const StateMapper mapper = qwen3_dense_from_huggingface(parameters, CausalLMHeadConfig{}, directory.names());
  EXPECT_THAT(load_model_state(*model, mapper, tensors_of(directory)).unused, IsEmpty());
  return model;
}

std::vector<std::int64_t> integers(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<std::int64_t>(), tensor.const_data_ptr<std::int64_t>() + tensor.numel()};
}

TEST(Generate, Continues_greedily_as_transformers) {
  const auto model = load_model(test::oracle_folder() / "causal_lm");
  const std::vector<std::int64_t> expected = integers(test::oracle_tensor("causal_lm/generated"));
  EXPECT_EQ(generate(model, integers(test::oracle_tensor("causal_lm/prompt")), {.num_tokens = std::ssize(expected)}),
            expected);
}

TEST(Generate, Samples_the_same_tokens_for_the_same_seed) {
  const auto model = test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())));
  const auto sample = [&](std::uint64_t seed) {
    return generate(model, {1, 2}, {.num_tokens = 12, .temperature = 3.0, .max_sequence = 8, .seed = seed});
  };
  EXPECT_EQ(sample(1), sample(1));
  EXPECT_NE(sample(1), sample(2));
  EXPECT_TRUE(model->is_training());
}

// Not what the last forward computed with, where parameters are kept in another dtype than layers compute in.
TEST(Generate, Uses_the_values_that_are_stored) {
  const auto written = [](bool keeps_float) {
    const auto model = make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense()));
    model->to(at::kBFloat16);
    if (keeps_float) keep_parameters_in(model.shared(), at::kFloat);
    model->materialize(at::kCPU);
    model->reset_parameters(1);
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : model->named_parameters()) parameter->stored().neg_();
    return generate(model, {1, 2}, {.num_tokens = 12, .temperature = 3.0, .seed = 1});
  };
  EXPECT_EQ(written(true), written(false));
}

TEST(Generate, Restores_the_mode_of_each_module_also_when_on_token_throws) {
  const auto model = test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())));
  model->model->eval();
  (void)generate(model, {1, 2}, {.num_tokens = 1});
  EXPECT_TRUE(model->is_training() && model->head->is_training());
  EXPECT_FALSE(model->model->is_training());
  const auto fail = [](std::int64_t, std::int64_t) { throw UsageError("enough"); };
  EXPECT_THROW((void)generate(model, {1, 2}, {.num_tokens = 1, .on_token = fail}), UsageError);
  EXPECT_TRUE(model->is_training() && model->head->is_training());
  EXPECT_FALSE(model->model->is_training());
}

TEST(Generate, Refuses_options_that_are_none) {
  const auto model = test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())));
  EXPECT_THROW((void)generate(model, {1}, {.num_tokens = 1, .max_sequence = -1}), ConfigError);
  EXPECT_THROW((void)generate(model, {1}, {.num_tokens = -1}), ConfigError);
  for (const double temperature : {-1.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW((void)generate(model, {1}, {.num_tokens = 1, .temperature = temperature}), ConfigError);
  }
}

TEST(Generate, Ends_with_the_first_token_that_stops_it) {
  const auto model = test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())));
  GenerateOptions options{.num_tokens = 12, .temperature = 3.0, .seed = 1};
  const auto all = generate(model, {1, 2}, options);
  std::vector<std::int64_t> seen;
  options.on_token = [&seen](std::int64_t id, std::int64_t) { seen.push_back(id); };
  options.stop_ids = {all[5], all[7]};
  const auto end = std::ranges::find_first_of(all, options.stop_ids) + 1;
  EXPECT_EQ(generate(model, {1, 2}, options), std::vector<std::int64_t>(all.begin(), end));
  EXPECT_EQ(seen, std::vector<std::int64_t>(all.begin(), end));
  EXPECT_LE(seen.size(), 6U);
}

// Ranks whose logits differ would stop at other tokens, and those that share a model would wait for each other.
TEST(Generate, Takes_the_tokens_of_the_first_rank) {
  std::vector<std::vector<std::int64_t>> of_ranks(2);
  test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh ranks("ranks", {{"all", 2}}, test::borrowed(world));
    auto model = make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense()));
    test::initialized(model, at::kDouble, /*base_seed=*/static_cast<std::uint64_t>(world.rank()));
    of_ranks[static_cast<std::size_t>(world.rank())] =
        generate(model, {1, 2}, {.num_tokens = 12, .temperature = 3.0, .stop_ids = {0}, .ranks = ranks});
  });
  EXPECT_EQ(of_ranks[0], of_ranks[1]);
}

// What generate_oracle.py has written, once.
const std::filesystem::path& text_oracle() {
  static const std::filesystem::path folder = [] {
    std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "d9d" / "generate_oracle";
    std::filesystem::remove_all(path);
    test::run_python("tests/models/decoder/generate_oracle.py", {path.string()});
    return path;
  }();
  return folder;
}

TEST(GenerateText, Writes_what_transformers_does_after_texts_and_questions_in_whole_characters) {
  const auto model = load_model(text_oracle() / "model");
  const auto tokenizer = Tokenizer::from_file(text_oracle() / "tokenizer.json");
  std::ifstream file(text_oracle() / "cases.json");
  for (const auto& expected : nlohmann::json::parse(file)) {
    const auto prompt = expected.at("prompt").get<std::string>();
    GenerateOptions options{.num_tokens = expected.at("num_tokens")};
    if (!expected.at("stop").is_null()) options.stop_ids = {expected.at("stop")};
    const std::vector<ChatMessage> question = {{.role = "user", .content = prompt}};
    const auto chat = render_chat(ChatFamily::kChatMl, question, {.add_generation_prompt = true});
    const auto ids = expected.at("is_chat") ? encode_chat(tokenizer, chat).ids : tokenizer.encode(prompt).ids;
    std::vector<std::string> pieces;
    const std::string text =
        generate_text(model, tokenizer, ids, options, [&](std::string_view piece) { pieces.emplace_back(piece); });
    EXPECT_EQ(text, expected.at("text").get<std::string>()) << expected;
    std::string joined;
    for (const std::string& piece : pieces) {
      EXPECT_EQ(invalid_utf8_at(piece), std::nullopt) << "a part of a character";
      EXPECT_FALSE(piece.empty());
      joined += piece;
    }
    EXPECT_EQ(joined, text);
    EXPECT_GE(pieces.size(), std::min<std::size_t>(text.size() / 12, 5)) << "it comes while it is generated";
  }
}

TEST(GenerateText, Is_refused_with_a_tokenizer_of_ids_beyond_the_vocabulary) {
  const auto model = test::initialized(make_decoder_for_causal_lm(test::make_backbone(test::tiny_dense())));
  const auto tokenizer = Tokenizer::from_json(test::byte_tokenizer(), "tokenizer.json");
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)generate_text(model, tokenizer, {}, {}); }),
              AllOf(HasSubstr("ids below the model's vocabulary"), HasSubstr("up to 256")));
}

TEST(GenerateText, Is_refused_without_a_prompt) {
  const auto model = load_model(text_oracle() / "model");
  const auto tokenizer = Tokenizer::from_file(text_oracle() / "tokenizer.json");
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)generate_text(model, tokenizer, {}, {}); }),
              HasSubstr("a prompt of at least one token"));
}

}  // namespace
}  // namespace d9d::generate_test
