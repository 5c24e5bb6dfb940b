#include "d9d/data/build/pair_stream.h"

#include <filesystem>
#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/ignore_index.h"

#include "tests/support/io_faults.h"

namespace d9d::pair_stream_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class PairStream : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder / "pairs.jsonl") << R"({"question": "ab", "good": "cd", "bad": "efg"})"
                                          << "\n"
                                          << R"({"question": "h", "good": "ij", "bad": "k"})"
                                          << "\n"
                                          << R"({"question": "lmnop", "good": "qrstuv", "bad": "w"})"
                                          << "\n";
  }

  Json json() const {
    return {
        {"kind", "jsonl"},
        {"paths", {(folder / "pairs.jsonl").string()}},
        {"pairs",
         {{"format", "text"}, {"prompt_column", "question"}, {"chosen_column", "good"}, {"rejected_column", "bad"}}},
        {"cache", (folder / "cache").string()},
        {"sequence_length", 10},
        {"view", {{"kind", "documents"}}},
        {"shuffle", false},
        {"global_batch_size", 2},
        {"microbatch_size", 2},
        {"num_workers", 0}};
  }
  static DataConfig parsed(const Json& json) { return parse_record<DataConfig>(json); }
  static std::unique_ptr<PackStream<TokenBatch>> build(const Json& json, const DeviceMeshParameters& mesh = {}) {
    return build_pair_stream(parsed(json), {.vocabulary_size = 300, .max_positions = 10, .mesh = mesh});
  }

  const std::filesystem::path folder = test::fresh_directory("pairs");
};

// The characters of a row, and of its labels, "_" where there is none.
std::pair<std::string, std::string> texts(const TokenBatch& batch, std::int64_t row) {
  const auto text = [&](const at::Tensor& ids) {
    std::string all;
    for (std::int64_t i = 0; i < ids.size(1); ++i) {
      const auto id = ids[row][i].item<std::int64_t>();
      all += id == kIgnoreIndex ? '_' : id == 0 ? '.' : static_cast<char>(id);
    }
    return all;
  };
  return {text(batch.input_ids), text(batch.labels)};
}

TEST_F(PairStream, Has_two_rows_for_each_pair_with_labels_of_the_answers) {
  const auto stream = build(json());
  const TokenBatch batch = stream->next().value().front();
  ASSERT_EQ(batch.input_ids.size(0), 4);
  EXPECT_EQ(texts(batch, 0), std::pair(std::string("abc."), std::string("_cd_")));
  EXPECT_EQ(texts(batch, 1), std::pair(std::string("abef"), std::string("_efg")));
  EXPECT_EQ(texts(batch, 2), std::pair(std::string("hi.."), std::string("ij__")));
  EXPECT_EQ(texts(batch, 3), std::pair(std::string("h..."), std::string("k___")));
  EXPECT_EQ(batch.lengths, (std::vector<std::int64_t>{3, 4, 2, 1}));
  EXPECT_EQ(
      build(json(), {.context_parallel_shard = 2, .tensor_parallel = 4})->next().value().front().input_ids.size(1), 8);
}

TEST_F(PairStream, Fills_an_evaluation_with_pairs_that_do_not_count) {
  Json data = json();
  data["drop_last"] = false;
  data["microbatch_size"] = 1;
  const auto stream =
      build_pair_stream(parsed(data), {.vocabulary_size = 300, .stream = {.rank = {.index = 1, .size = 2}}});
  EXPECT_FALSE(stream->next().value().front().labels.eq(kIgnoreIndex).all().item<bool>());
  const TokenBatch padding = stream->next().value().front();  // of three pairs the other rank has the last one
  EXPECT_EQ(padding.labels.size(0), 2);
  EXPECT_TRUE(padding.labels.eq(kIgnoreIndex).all().item<bool>());
}

TEST_F(PairStream, Refuses_long_pairs_or_leaves_them_out) {
  Json data = json();
  data["sequence_length"] = 9;
  EXPECT_THAT([&] { (void)build(data); },
              ThrowsMessage<IoError>(AllOf(HasSubstr("at most 9 positions"), HasSubstr("got 11 tokens in"))));
  data["view"]["long_documents"] = "skip";
  const auto stream = build(data);
  EXPECT_EQ(stream->total_steps(), 1);
  bool says_so = false;
  for (const std::string& line : tree_lines(stream->describe())) says_so |= line.find("1 too long: skip") != line.npos;
  EXPECT_TRUE(says_so);
  data["sequence_length"] = 1;
  EXPECT_THAT([&] { (void)build(data); }, ThrowsMessage<ConfigError>(HasSubstr("none among the 3")));
}

TEST_F(PairStream, Refuses_what_it_does_not_build_by_name) {
  const auto with = [&](const char* key, const Json& value) {
    Json data = json();
    data[key] = value;
    return [data] { (void)build(data); };
  };
  EXPECT_THAT(with("view", {{"kind", "packed"}}), ThrowsMessage<ConfigError>(HasSubstr("the view \"documents\"")));
  EXPECT_THAT(with("view", {{"kind", "documents"}, {"long_documents", "split"}}),
              ThrowsMessage<ConfigError>(HasSubstr("\"split\"")));
  EXPECT_THAT(with("sequence_length", 11), ThrowsMessage<ConfigError>(HasSubstr("max_position_ids = 10")));
  EXPECT_THAT(with("pairs", nullptr), ThrowsMessage<ConfigError>(HasSubstr("the key \"pairs\"")));
  EXPECT_THAT([&] { (void)build_token_stream(parsed(json()), {.vocabulary_size = 300}); },
              ThrowsMessage<ConfigError>(HasSubstr("got pairs")));
}

TEST_F(PairStream, Has_keys_that_fit_together) {
  const auto parse = [&](const Json& changes) {
    Json data = json();
    data.update(changes);
    return [data] { (void)parsed(data); };
  };
  EXPECT_THAT(parse({{"messages_column", "messages"}, {"tokenizer", "t.json"}}),
              ThrowsMessage<ConfigError>(HasSubstr("pairs without messages_column")));
  EXPECT_THAT(parse({{"prompt_column", "question"}}), ThrowsMessage<ConfigError>(HasSubstr("pairs.prompt_column")));
  EXPECT_THAT(parse({{"pairs", {{"format", "text"}}}}), ThrowsMessage<ConfigError>(HasSubstr("pairs.prompt_column")));
  EXPECT_THAT(parse({{"tools_column", "tools"}}), ThrowsMessage<ConfigError>(HasSubstr("pairs of messages")));
  EXPECT_THAT(parse({{"pairs", Json::object()}}), ThrowsMessage<ConfigError>(HasSubstr("a tokenizer with pairs")));
  EXPECT_THAT(parse({{"pairs", Json::object()}, {"tokenizer", "t.json"}, {"end_of_document", "."}}),
              ThrowsMessage<ConfigError>(HasSubstr("no end_of_document with pairs of messages")));
}

}  // namespace
}  // namespace d9d::pair_stream_test
