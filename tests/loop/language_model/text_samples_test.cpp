#include "d9d/loop/language_model/text_samples.h"

#include <fstream>
#include <sstream>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/models/decoder/generate_text.h"
#include "d9d/models/qwen3_dense/model.h"
#include "d9d/testing/ranks.h"
#include "d9d/tokenizer/chat/encode_chat.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/decoder_families.h"
#include "tests/support/io_faults.h"

namespace d9d::text_samples_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr TokenLimits kLimits{.vocabulary_size = 260, .max_positions = 64};

// A random model of 260 ids, and a tokenizer whose ids are bytes, "<s>" and the tokens of ChatML.
class TextSamplesOf : public ::testing::Test {
 protected:
  static ModulePtr<DecoderForCausalLM> make_model() {
    auto sizes = test::small_parameters<Qwen3DenseParameters>({});
    sizes.max_position_ids = kLimits.max_positions;
    sizes.split_vocab_size = {{"all", kLimits.vocabulary_size}};
    sizes.split_vocab_order = {"all"};
    auto model = make_decoder_for_causal_lm(make_module<Qwen3DenseModel>(sizes, DecoderStageOptions{}));
    model->to(at::kDouble);
    model->materialize(at::kCPU);
    model->reset_parameters(/*base_seed=*/3);
    return model;
  }
  void SetUp() override { std::ofstream(file) << test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}); }

  // Data with the given keys, among them `kind`.
  static DataConfig data(nlohmann::json keys) {
    if (keys.at("kind") != "mixture") keys["sequence_length"] = 8;
    keys.update({{"global_batch_size", 1}, {"microbatch_size", 1}, {"num_workers", 0}});
    return parse_record<DataConfig>(keys, {.keys = "data"});
  }
  DataConfig jsonl(const nlohmann::json& keys = nlohmann::json::object()) const {
    nlohmann::json all = {{"kind", "jsonl"}, {"paths", {"a.jsonl"}}, {"tokenizer", file}};
    all.update(keys);
    return data(all);
  }
  static DataConfig bytes() { return data({{"kind", "text"}, {"paths", {"a.txt"}}}); }
  static DataConfig tokens() { return data({{"kind", "tokens"}, {"path", "a.bin"}, {"dtype", "uint16"}}); }

  std::string written(const TextSamplesConfig& config, const DataConfig& of) const {
    const DistContext context({.world = one_rank_world()});
    std::ostringstream out;
    TextSamples(config, of, kLimits).write(context, *one_piece_decoder(model), out);
    return out.str();
  }
  // The expected sample for `prompt`, which is written as `text`.
  std::string sample(const std::string& text, std::span<const std::uint32_t> prompt,
                     const GenerateOptions& options) const {
    return "--- a sample ---\n" + text + generate_text(model, tokenizer(), prompt, options) + "\n";
  }
  Tokenizer tokenizer() const { return Tokenizer::from_file(file); }
  static std::string error_of(const TextSamplesConfig& config, const DataConfig& of, TokenLimits limits = kLimits) {
    return test::message_of<ConfigError>([&] { (void)TextSamples(config, of, limits); });
  }

  const std::string file = (test::fresh_directory("samples") / "tokenizer.json").string();
  const ModulePtr<DecoderForCausalLM> model = make_model();
  const GenerateOptions greedy{.num_tokens = 30, .max_sequence = kLimits.max_positions};
};

TEST_F(TextSamplesOf, Bytes_are_what_a_model_of_bytes_generates) {
  const TextSamplesConfig config{.prompts = {"ab", "\xc3"}, .num_tokens = 30, .temperature = 0};
  std::string expected;
  for (const std::string& prompt : config.prompts) {
    expected += "--- a sample ---\n" + prompt + generate_bytes(model, prompt, greedy) + "\n";
  }
  EXPECT_EQ(written(config, bytes()), expected);
}

TEST_F(TextSamplesOf, Bytes_are_drawn_as_generate_draws_them) {
  const auto drawn = [&](std::int64_t top_k, double top_p) {
    return written({.prompts = {"ab"}, .num_tokens = 30, .temperature = 2.0, .top_k = top_k, .top_p = top_p}, bytes());
  };
  GenerateOptions options = greedy;
  options.temperature = 2.0;
  options.top_k = 5;
  EXPECT_EQ(drawn(5, 1), "--- a sample ---\nab" + generate_bytes(model, "ab", options) + "\n");
  options.top_k = 0;
  options.top_p = 0.2;
  EXPECT_EQ(drawn(0, 0.2), "--- a sample ---\nab" + generate_bytes(model, "ab", options) + "\n");
  EXPECT_NE(drawn(0, 0.2), drawn(5, 1));
  EXPECT_NE(drawn(0, 1), drawn(5, 1));
  EXPECT_THAT(error_of({.prompts = {"ab"}, .top_p = 1.5}, bytes()), HasSubstr("a top_p in (0, 1], got 1.5"));
}

TEST_F(TextSamplesOf, Text_are_encoded_and_end_as_the_data_is) {
  const TextSamplesConfig config{.prompts = {"ab"}, .num_tokens = 30, .temperature = 0};
  const auto ids = tokenizer().encode("ab", {.add_special_tokens = false}).ids;
  const auto with_special = tokenizer().encode("ab").ids;
  ASSERT_NE(ids, with_special);
  const std::string plain = sample("ab", ids, greedy);
  EXPECT_EQ(written(config, jsonl()), plain);
  EXPECT_EQ(written(config, jsonl({{"add_special_tokens", true}})), sample("ab", with_special, greedy));
  // The sample ends at a token that the greedy sample contains.
  const std::int64_t end = generate(model, {ids.begin(), ids.end()}, greedy)[4];
  const std::string name = tokenizer().id_to_token(static_cast<std::uint32_t>(end)).value();
  GenerateOptions ended = greedy;
  ended.stop_ids = {end};
  EXPECT_EQ(written(config, jsonl({{"end_of_document", name}})), sample("ab", ids, ended));
  TextSamplesConfig stopped = config;
  stopped.stop_at = {name};
  EXPECT_EQ(written(stopped, jsonl()), sample("ab", ids, ended));
  EXPECT_NE(written(stopped, jsonl()), plain);
}

TEST_F(TextSamplesOf, Conversations_are_what_the_assistant_answers) {
  const TextSamplesConfig config{.prompts = {"Hi"}, .num_tokens = 30, .temperature = 0};
  const std::vector<ChatMessage> question = {{.role = "user", .content = "Hi"}};
  const auto chat = render_chat(ChatFamily::kChatMl, question, {.add_generation_prompt = true});
  GenerateOptions ended = greedy;
  ended.stop_ids = {258};  // <|im_end|>
  EXPECT_EQ(written(config, jsonl({{"messages_column", "messages"}, {"chat_template", "chatml"}})),
            sample("Hi\n", encode_chat(tokenizer(), chat).ids, ended));
}

TEST_F(TextSamplesOf, Token_ids_have_the_tokenizer_that_is_named) {
  TextSamplesConfig config{.prompts = {"ab"}, .num_tokens = 30, .temperature = 0};
  nlohmann::json bytes_of_rows = {{"kind", "jsonl"}, {"paths", {"a"}}, {"sequence_length", 8}}, text = bytes_of_rows;
  text.update({{"kind", "text"}, {"tokenizer", file}});
  const DataConfig mixture =
      data({{"kind", "mixture"},
            {"sources", {{{"weight", 1}, {"source", bytes_of_rows}}, {{"weight", 1}, {"source", text}}}}});
  for (const DataConfig& of : {tokens(), mixture}) {
    config.tokenizer = std::nullopt;
    EXPECT_THAT(error_of(config, of), HasSubstr("expected sample.tokenizer for data of token ids"));
    config.tokenizer = file;
    EXPECT_EQ(written(config, of), sample("ab", tokenizer().encode("ab", {.add_special_tokens = false}).ids, greedy));
  }
}

TEST_F(TextSamplesOf, Several_ranks_are_written_by_the_first) {
  const TextSamplesConfig config{.prompts = {"ab"}, .num_tokens = 3};
  std::vector<std::string> of_ranks(2);
  d9d::testing::run_ranks({.data_parallel_replicate = 2}, [&](const DistContext& context) {
    std::ostringstream out;
    TextSamples(config, bytes(), kLimits).write(context, *one_piece_decoder(make_model()), out);
    of_ranks[static_cast<std::size_t>(context.rank())] = out.str();
  });
  EXPECT_THAT(of_ranks[0], HasSubstr("--- a sample ---\nab"));
  EXPECT_EQ(of_ranks[1], "");
}

TEST_F(TextSamplesOf, A_model_without_the_tokens_are_refused) {
  const TextSamplesConfig config{.prompts = {"ab"}};
  EXPECT_THAT(error_of(config, jsonl(), {.vocabulary_size = 258, .max_positions = 64}),
              AllOf(HasSubstr("a vocabulary of at least 259 for '" + file + "'"), HasSubstr("got 258")));
  EXPECT_THAT(error_of(config, bytes(), {.vocabulary_size = 255, .max_positions = 64}), HasSubstr("256 for bytes"));
}

TEST_F(TextSamplesOf, Nothing_and_stops_that_are_no_tokens_are_refused) {
  EXPECT_THAT(error_of({.prompts = {"ab", ""}}, jsonl()), HasSubstr("sample.prompts, got ''"));
  EXPECT_THAT(error_of({.prompts = {"ab"}, .stop_at = {"<|end|>"}}, jsonl()), HasSubstr("got '<|end|>'"));
  EXPECT_THAT(error_of({.prompts = {"ab"}, .stop_at = {"<s>"}}, bytes()), HasSubstr("got '<s>'"));
  EXPECT_THROW((void)TextSamples({.prompts = {"ab"}, .tokenizer = "nowhere.json"}, tokens(), kLimits), IoError);
}

}  // namespace
}  // namespace d9d::text_samples_test
