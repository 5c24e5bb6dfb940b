#include "d9d/loop/language_model/model_tokenizer.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/core/communicator/thread/thread_job.h"
#include "d9d/loop/checkpoint/export_model.h"
#include "d9d/tokenizer/tokenizer_identity.h"

#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"

namespace d9d::model_tokenizer_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

class ModelTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(mine);
    fs::create_directories(source);
    write(mine / "tokenizer.json", test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
  }
  static void write(const fs::path& path, const std::string& text) { std::ofstream(path) << text; }

  DataConfig data(json keys = json::object()) const {
    json all = {{"kind", "jsonl"},      {"paths", {"a.jsonl"}},   {"tokenizer", (mine / "tokenizer.json").string()},
                {"sequence_length", 8}, {"global_batch_size", 1}, {"microbatch_size", 1}};
    all.update(keys);
    if (all.at("kind") != "jsonl") all.erase("tokenizer");
    if (all.at("kind") == "tokens") all.erase("paths");
    return parse_record<DataConfig>(all, {.keys = "data"});
  }
  // A mixture of sources with these tokenizers; the second has conversations.
  static DataConfig mixture(const fs::path& texts, const fs::path& chats) {
    json all = json::array();
    for (const fs::path& tokenizer : {texts, chats}) {
      json one = {{"kind", "jsonl"}, {"paths", {"a"}}, {"tokenizer", tokenizer.string()}, {"sequence_length", 8}};
      if (!all.empty()) one.update({{"messages_column", "messages"}, {"chat_template", "chatml"}});
      one["view"] = {{"kind", "documents"}};
      all.push_back({{"weight", 1.0}, {"source", one}});
    }
    const json keys = {{"kind", "mixture"}, {"global_batch_size", 1}, {"microbatch_size", 1}, {"sources", all}};
    return parse_record<DataConfig>(keys, {.keys = "data"});
  }
  DataConfig bytes() const { return data({{"kind", "text"}, {"view", {{"kind", "concatenated"}}}}); }
  DataConfig ids() const { return data({{"kind", "tokens"}, {"path", "a.bin"}, {"dtype", "uint16"}}); }

  std::string refusal(const DataConfig& config) const {
    return test::message_of<ConfigError>([&] { check_tokenizer(context, config, source); });
  }
  // Returns what the main process logs.
  template <class Work>
  static std::string logged(const Work& work) {
    ::testing::internal::CaptureStderr();
    work();
    return ::testing::internal::GetCapturedStderr();
  }
  static std::vector<std::string> names_of(const std::map<std::string, std::string>& files) {
    std::vector<std::string> names;
    for (const auto& [name, text] : files) names.push_back(name);
    return names;
  }

  const fs::path folder = test::fresh_directory("d"), mine = folder / "mine", source = folder / "source";
  const DistContext context = DistContext({.world = one_rank_world()});
};

TEST_F(ModelTokenizer, Of_other_ids_than_the_weights_have_is_refused) {
  check_tokenizer(context, data(), source);  // nothing to compare
  json other = json::parse(test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
  std::swap(other["model"]["vocab"]["x"], other["model"]["vocab"]["y"]);
  write(source / "tokenizer.json", other.dump());
  EXPECT_THAT(refusal(data()), AllOf(HasSubstr("source_checkpoint"), HasSubstr(mine / "tokenizer.json"),
                                     HasSubstr(source / "tokenizer.json"), HasSubstr("move the file away")));
  EXPECT_THAT(refusal(bytes()), HasSubstr("got bytes"));
  check_tokenizer(context, ids(), source);
  const json mixture = {
      {"kind", "mixture"},
      {"global_batch_size", 1},
      {"microbatch_size", 1},
      {"sources",
       {{{"weight", 1.0}, {"source", {{"kind", "tokens"}, {"path", "a"}, {"dtype", "uint16"}, {"sequence_length", 8}}}},
        {{"weight", 1.0},
         {"source",
          {{"kind", "jsonl"},
           {"paths", {"a"}},
           {"tokenizer", (mine / "tokenizer.json").string()},
           {"sequence_length", 8}}}}}}};
  EXPECT_THAT(refusal(parse_record<DataConfig>(mixture, {.keys = "data"})), HasSubstr("other texts"));
}

TEST_F(ModelTokenizer, Of_the_same_ids_in_another_form_or_with_other_added_tokens_is_taken) {
  const auto warning = [&] { return logged([&] { check_tokenizer(context, data(), source); }); };
  write(source / "tokenizer.json", json::parse(test::byte_tokenizer({"<|im_start|>", "<|im_end|>"})).dump(2));
  EXPECT_EQ(warning(), "");
  write(source / "tokenizer.json", test::byte_tokenizer({"<|reserved_0|>"}));
  EXPECT_THAT(warning(), HasSubstr("other added tokens, merges or rules"));
  write(source / "tokenizer.json", R"({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}})");
  EXPECT_THAT(warning(), AllOf(HasSubstr("cannot compare"), HasSubstr(source / "tokenizer.json")));
}

TEST_F(ModelTokenizer, Of_each_source_is_compared_with_that_of_the_weights) {
  json other = json::parse(test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
  write(source / "tokenizer.json", other.dump());
  std::swap(other["model"]["vocab"]["x"], other["model"]["vocab"]["y"]);
  write(folder / "other.json", other.dump());
  EXPECT_THAT(refusal(mixture(mine / "tokenizer.json", folder / "other.json")), HasSubstr(folder / "other.json"));
}

TEST_F(ModelTokenizer, Of_conversations_goes_into_the_export_of_a_mixture) {
  write(folder / "base.json", test::byte_tokenizer());
  const auto files = tokenizer_files(context, mixture(folder / "base.json", mine / "tokenizer.json"), {});
  EXPECT_EQ(files.at("tokenizer.json"), test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
  EXPECT_EQ(json::parse(files.at("generation_config.json")).at("eos_token_id"), 258);
}

TEST_F(ModelTokenizer, Of_another_job_is_told_before_an_export_without_one_removes_it) {
  const auto warning = [&](const std::map<std::string, std::string>& files) {
    return logged([&] { (void)prepare_export(context, mine, files, {}); });
  };
  EXPECT_THAT(warning({}), AllOf(HasSubstr(mine / "tokenizer.json"), HasSubstr("sample.tokenizer")));
  EXPECT_EQ(warning({{"tokenizer.json", "own"}}), "");
}

TEST_F(ModelTokenizer, Goes_into_an_export_with_what_lies_beside_it) {
  write(mine / "tokenizer_config.json", R"({"chat_template": "other"})");
  write(mine / "chat_template.jinja", kChatMl);
  write(mine / "unrelated.txt", "");
  write(source / "generation_config.json", R"({"eos_token_id": [7, 258], "temperature": 0.6})");
  const DataConfig chat = data({{"messages_column", "messages"}, {"view", {{"kind", "documents"}}}});
  const auto files = tokenizer_files(context, chat, {.source_checkpoint = source});
  EXPECT_THAT(names_of(files),
              ElementsAre("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(files.at("tokenizer.json"), test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
  EXPECT_EQ(json::parse(files.at("generation_config.json")),
            (json{{"eos_token_id", {258, 7}}, {"pad_token_id", 258}, {"temperature", 0.6}}));
}

TEST_F(ModelTokenizer, Gets_a_configuration_where_it_has_none) {
  const auto files = tokenizer_files(context, data({{"end_of_document", "<s>"}}), {.max_positions = 64});
  EXPECT_EQ(json::parse(files.at("tokenizer_config.json")), (json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                                                                  {"clean_up_tokenization_spaces", false},
                                                                  {"model_max_length", 64},
                                                                  {"eos_token", "<s>"}}));
  EXPECT_EQ(json::parse(files.at("generation_config.json")), (json{{"eos_token_id", 256}, {"pad_token_id", 256}}));
  const auto of_bytes = tokenizer_files(context, bytes(), {});
  EXPECT_THAT(names_of(of_bytes), ElementsAre("tokenizer.json", "tokenizer_config.json"));
  EXPECT_EQ(identity_of_tokenizer(json::parse(of_bytes.at("tokenizer.json"))), byte_tokenizer_identity());
}

TEST_F(ModelTokenizer, Of_data_of_ids_is_that_of_the_weights_or_of_samples) {
  EXPECT_TRUE(tokenizer_files(context, ids(), {.source_checkpoint = source}).empty());
  const auto sampled = tokenizer_files(context, ids(), {.tokenizer = mine / "tokenizer.json"});
  EXPECT_EQ(sampled.at("tokenizer.json"), test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
  write(source / "tokenizer.json", test::byte_tokenizer({"<weights>"}));
  const auto files =
      tokenizer_files(context, ids(), {.source_checkpoint = source, .tokenizer = mine / "tokenizer.json"});
  EXPECT_EQ(files.at("tokenizer.json"), test::byte_tokenizer({"<weights>"}));
}

TEST_F(ModelTokenizer, Has_the_chat_template_of_the_data) {
  const auto chat = [&](const std::string& chat_template) {
    return data({{"messages_column", "messages"}, {"view", {{"kind", "documents"}}}, {"chat_template", chat_template}});
  };
  const auto warning = [&] { return logged([&] { (void)tokenizer_files(context, chat("qwen2"), {}); }); };
  EXPECT_THAT(warning(), AllOf(HasSubstr("no chat template"), HasSubstr("written as qwen2")));
  write(folder / "own.jinja", kChatMl);
  EXPECT_EQ(tokenizer_files(context, chat(folder / "own.jinja"), {}).at("chat_template.jinja"), kChatMl);
  write(mine / "chat_template.jinja", kChatMl);
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)tokenizer_files(context, chat("qwen2"), {}); }),
              HasSubstr("chat_template = qwen2 to write what the template of"));
}

}  // namespace
}  // namespace d9d::model_tokenizer_test
