// A job resumes only on its own data. The same number of other documents, or documents of another tokenizer, give an
// error that names the difference; copies of the files in other places are accepted.
#include <filesystem>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/data/build/token_stream.h"

#include "tests/data/source/source_test.h"
#include "tests/support/byte_tokenizer.h"

namespace d9d::same_data_test {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

class SameData : public test::SourceTest {
 protected:
  static std::unique_ptr<PackStream<TokenBatch>> build(const json& data) {
    return build_token_stream(parse_record<DataConfig>(data, {.keys = "data"}), {.vocabulary_size = 300});
  }
  json data_of(json source) const {
    source.update({{"sequence_length", 8}, {"global_batch_size", 1}, {"microbatch_size", 1}});
    return source;
  }
  json lines(const std::string& name, const std::string& view, const std::vector<std::string>& texts) const {
    std::string all;
    for (const std::string& text : texts) all += json{{"text", text}}.dump() + "\n";
    return data_of({{"kind", "jsonl"},
                    {"paths", {write(name, all)}},
                    {"cache", (folder / "cache").string()},
                    {"view", {{"kind", view}}}});
  }
  // A tokenizer of bytes with the ids of two bytes swapped.
  static std::string other_bytes() {
    json file = json::parse(test::byte_tokenizer({"<x>"}));
    std::swap(file["model"]["vocab"]["x"], file["model"]["vocab"]["y"]);
    return file.dump();
  }
  static json mixture_of(const std::vector<json>& data) {
    json sources = json::array();
    for (json source : data) {
      for (const char* key : {"global_batch_size", "microbatch_size"}) source.erase(key);
      sources.push_back({{"weight", 1.0}, {"source", source}});
    }
    return {{"kind", "mixture"}, {"sources", sources}, {"global_batch_size", 1}, {"microbatch_size", 1}};
  }
  // The error when a job with the data `later` resumes a job with the data `before` after one step; empty if there is
  // none.
  static std::string refusal(const json& before, const json& later) {
    const auto saved = build(before);
    (void)saved->next();
    const auto stream = build(later);
    try {
      stream->load_state(saved->state());
    } catch (const StateError& error) {
      return error.what();
    }
    return "";
  }
};

constexpr const char* kRemedy = "a new job, in another save_dir, with the checkpoint as trainer.model_stage_factory";

TEST_F(SameData, Is_refused_where_documents_are_others_of_the_same_number) {
  const std::vector<std::string> texts = {"abcdefghi", "jklmnopqr", "stuvwxyza"},
                                 other = {"stuvwxyza", "jklmnopqr", "abcdefghi"};
  for (const std::string view : {"documents", "concatenated", "packed", "streamed"}) {
    const json before = lines("a.jsonl", view, texts);
    EXPECT_EQ(refusal(before, before), "") << view;
    EXPECT_THAT(refusal(before, lines("b.jsonl", view, other)), HasSubstr(kRemedy)) << view;
  }
  EXPECT_THAT(refusal(lines("a.jsonl", "documents", texts), lines("b.jsonl", "documents", other)),
              HasSubstr("got other documents."));
}

TEST_F(SameData, Is_refused_where_a_prompt_is_now_an_answer) {
  write("a.jsonl", "{\"p\": \"abc\", \"text\": \"def\"}\n{\"p\": \"g\", \"text\": \"hi\"}\n");
  json before = data_of({{"kind", "jsonl"},
                         {"paths", {(folder / "a.jsonl").string()}},
                         {"cache", (folder / "cache").string()},
                         {"prompt_column", "p"},
                         {"view", {{"kind", "documents"}}}});
  write("b.jsonl", "{\"p\": \"ab\", \"text\": \"cdef\"}\n{\"p\": \"g\", \"text\": \"hi\"}\n");  // other targets
  json later = before;
  later["paths"] = {(folder / "b.jsonl").string()};
  EXPECT_EQ(refusal(before, before), "");
  EXPECT_THAT(refusal(before, later), HasSubstr("got other documents"));
}

TEST_F(SameData, Is_refused_of_files_of_tokens) {
  std::vector<std::uint16_t> tokens(20000);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 251);
  const auto data = [&](const std::string& name) {
    return data_of({{"kind", "tokens"},
                    {"path", write_tokens(name, tokens)},
                    {"dtype", "uint16"},
                    {"view", {{"kind", "concatenated"}}}});
  };
  const json before = data("a.bin");
  EXPECT_EQ(refusal(before, data("copy.bin")), "");
  tokens[10000] ^= 1;
  EXPECT_THAT(refusal(before, data("b.bin")), HasSubstr("got other documents"));
}

TEST_F(SameData, Is_named_by_its_tokenizer_and_source) {
  json before = lines("a.jsonl", "documents", {"abcdefghi", "jklmnopqr"});
  before["tokenizer"] = write("one.json", test::byte_tokenizer({"<x>"}));
  json later = before;
  later["tokenizer"] = write("two.json", other_bytes());
  EXPECT_THAT(refusal(before, later), HasSubstr("got tokens of another tokenizer."));

  const auto mixture = [&](const json& second) { return mixture_of({before, second}); };
  json other = lines("c.jsonl", "documents", {"jklmnopqr", "abcdefghi"});
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(mixture(later)); }),
              AllOf(HasSubstr("one tokenizer in all sources"), HasSubstr("one.json' in source 0"),
                    HasSubstr("two.json' in source 1"), HasSubstr("the id 120 is 'x' and 'y'")));
  json of_bytes = other;
  std::swap(before, later);
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(mixture(of_bytes)); }), HasSubstr("bytes in source 1"));
  std::swap(before, later);
  other["tokenizer"] = write("copy.json", nlohmann::json::parse(test::byte_tokenizer({"<x>"})).dump(2));
  EXPECT_THAT(refusal(mixture(before), mixture(other)), HasSubstr("got other documents in source 1"));
}

// For example a base and a chat tokenizer, or a tokenizer whose file was rewritten.
TEST_F(SameData, Is_that_of_any_tokenizer_that_gives_the_same_ids) {
  for (const std::string view : {"documents", "packed", "streamed"}) {
    json before = lines("a.jsonl", view, {"abcdefghi", "jklmnopqr", "stuvwxyza"});
    before["tokenizer"] = write("base.json", test::byte_tokenizer({"<x>"}));
    json later = before;
    later["tokenizer"] = write("written_again.json", json::parse(test::byte_tokenizer({"<x>"})).dump(2));
    EXPECT_EQ(refusal(before, later), "") << view;
    later["tokenizer"] = write("chat.json", test::byte_tokenizer({"<x>", "<|im_start|>", "<|im_end|>"}));
    const bool is_known = view != "streamed";  // rows that are not read yet might contain such a token
    EXPECT_THAT(refusal(before, later), HasSubstr(is_known ? "" : "got tokens of another tokenizer.")) << view;
    EXPECT_EQ(refusal(before, later).empty(), is_known) << view;
  }
}

TEST_F(SameData, Of_a_mixture_may_have_a_base_and_a_chat_tokenizer) {
  json base = lines("a.jsonl", "documents", {"abcdefghi"}), chat = lines("b.jsonl", "documents", {"jklmnopqr"});
  base["tokenizer"] = write("base.json", test::byte_tokenizer({"<x>"}));
  chat["tokenizer"] = write("chat.json", test::byte_tokenizer({"<x>", "<|im_start|>", "<|im_end|>"}));
  EXPECT_NO_THROW((void)build(mixture_of({base, chat})));
  chat["tokenizer"] = write("renamed.json", test::byte_tokenizer({"<|im_start|>", "<|im_end|>"}));
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)build(mixture_of({base, chat}));
              }),
              HasSubstr("the id 257 is '<x>' and '<|im_start|>'"));
  chat["tokenizer"] = "Qwen/Qwen3-0.6B";
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)build(mixture_of({base, chat}));
              }),
              AllOf(HasSubstr("\"tokenizer\""), HasSubstr("hf download")));
}

// For example node-local copies, or files whose time has changed.
TEST_F(SameData, Is_its_content_and_not_its_path_or_time) {
  for (const std::string view : {"packed", "streamed"}) {
    const json before = lines("a.jsonl", view, {"abcdefghi", "jklmnopqr", "stuvwxyza"});
    const auto saved = build(before);
    (void)saved->next();
    std::filesystem::create_directories(folder / "copy");
    std::filesystem::copy_file(folder / "a.jsonl", folder / "copy" / "other.jsonl",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::last_write_time(folder / "copy" / "other.jsonl", std::filesystem::file_time_type::clock::now());
    json later = before;
    later["paths"] = {(folder / "copy" / "other.jsonl").string()};
    const auto stream = build(later);
    EXPECT_EQ(stream->state().at("order"), saved->state().at("order")) << view;
    EXPECT_NO_THROW(stream->load_state(saved->state())) << view;
  }
}

// Checkpoints of earlier versions do not contain the identity of their data.
TEST_F(SameData, Is_not_compared_where_the_saved_run_did_not_know_it) {
  const auto saved = build(lines("a.jsonl", "documents", {"abcdefghi", "jklmnopqr"}));
  json state = saved->state();
  state.at("order").erase("data");
  EXPECT_NO_THROW(build(lines("b.jsonl", "documents", {"jklmnopqr", "abcdefghi"}))->load_state(state));
}

}  // namespace
}  // namespace d9d::same_data_test
