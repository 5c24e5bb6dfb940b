// Every kind of data in every view: the same samples on any number of ranks and workers, and after any interruption.
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/data/token_stream.h"

#include "tests/data/view/sample_values.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::token_stream_kinds_test {
namespace {

using test::values;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A microbatch as numbers: ids, labels, positions and boundaries.
using Numbers = std::vector<std::vector<std::int64_t>>;
// The packs of a rank, each a list of microbatches.
using Packs = std::vector<std::vector<Numbers>>;

Numbers numbers_of(const TokenBatch& batch) {
  Numbers numbers{values(batch.input_ids),
                  values(batch.labels),
                  values(batch.position_ids),
                  {batch.input_ids.sizes().begin(), batch.input_ids.sizes().end()}};
  if (batch.packed) numbers.push_back(values(batch.packed->cu_seqlens));
  return numbers;
}

std::vector<Numbers> numbers_of(const std::vector<TokenBatch>& pack) {
  std::vector<Numbers> numbers;
  for (const TokenBatch& batch : pack) numbers.push_back(numbers_of(batch));
  return numbers;
}

// Text of several lengths as files of every kind; tokens are its bytes.
class Kinds : public ::testing::TestWithParam<std::tuple<const char*, const char*, bool>> {
 protected:
  static void SetUpTestSuite() {
    static bool is_done = false;  // once for all suites
    if (std::exchange(is_done, true)) return;
    const auto folder = root();
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder / "text");
    std::string jsonl, tokens, chats;
    for (int i = 0; i < 90; ++i) {
      const std::string text = std::string(2 + i * 7 % 13, static_cast<char>('a' + i % 26)) + std::to_string(i);
      jsonl += "{\"text\": \"" + text + "\", \"prompt\": \"" + std::string(i % 3, '?') + "\"}\n";
      tokens += text + ".";
      const nlohmann::json question = {{"role", "user"}, {"content", std::to_string(i)}};
      const nlohmann::json answer = {{"role", "assistant"}, {"content", std::string(i % 5, 'a')}};
      chats += nlohmann::json{{"messages", {question, answer}}}.dump() + "\n";
      if (i < 30) std::ofstream(folder / "text" / (std::to_string(100 + i) + ".txt")) << text << text;
    }
    std::ofstream(folder / "a.jsonl") << jsonl;
    std::ofstream(folder / "chats.jsonl") << chats;
    std::ofstream(folder / "tokenizer.json") << test::byte_tokenizer({"<|im_start|>", "<|im_end|>"});
    std::ofstream(folder / "tokens.bin") << tokens;
    test::run_python("tests/data/make_column_files.py", {(folder / "a.jsonl").string(), folder.string()});
  }
  static std::filesystem::path root() { return std::filesystem::path(::testing::TempDir()) / "d9d" / "kinds"; }

  // The source of a kind, without its view.
  static nlohmann::json source(const std::string& kind) {
    const auto path = [](const char* name) { return (root() / name).string(); };
    nlohmann::json json = {{"kind", kind}};
    if (kind == "tokens") {
      json.update({{"path", path("tokens.bin")}, {"dtype", "uint8"}, {"end_of_document", '.'}});
    } else if (kind == "chats") {
      json.update({{"kind", "jsonl"},
                   {"paths", {path("chats.jsonl")}},
                   {"cache", path("cache")},
                   {"messages_column", "messages"},
                   {"chat_template", "chatml"},
                   {"tokenizer", path("tokenizer.json")}});
    } else if (kind == "megatron") {
      json.update({{"paths", {D9D_SOURCE_DIR "/tests/data/source/megatron/uint16.idx"}}});
    } else {
      const std::map<std::string, const char*> files{
          {"text", "text/*.txt"}, {"jsonl", "a.jsonl"}, {"parquet", "a.parquet"}, {"arrow", "a-*.arrow"}};
      json.update({{"paths", {path(files.at(kind))}}, {"cache", path("cache")}, {"num_proc", 2}});
      if (kind == "jsonl") json["prompt_column"] = "prompt";
      if (kind != "text") json["end_of_document"] = ".";
    }
    return json;
  }
  static void add_view(nlohmann::json& json, const std::string& view) {
    json["sequence_length"] = view == "concatenated" ? 6 : 48;
    json["view"] = {{"kind", view == "sorted" ? "documents" : view}};
    if (view == "sorted") json["view"]["sort_buffer_size"] = 16;
    if (view == "packed") json["view"]["buffer_size"] = 40;
  }
  static nlohmann::json job() {
    const auto& [kind, view, shuffle] = GetParam();
    nlohmann::json json = {{"kind", kind}};
    if (kind == std::string("mixture")) {
      for (const auto& [of, weight] : {std::pair{"parquet", 2.0}, std::pair{"tokens", 1.0}}) {
        nlohmann::json one = source(of);
        add_view(one, view);
        json["sources"].push_back({{"weight", weight}, {"source", one}});
      }
    } else {
      json = source(kind);
      add_view(json, view);
    }
    json.update({{"global_batch_size", 4}, {"microbatch_size", 1}, {"num_workers", 0}, {"shuffle", shuffle}});
    return json;
  }
  // The vocabulary is that of the Megatron file; others have less.
  static std::unique_ptr<PackStream<TokenBatch>> build(const nlohmann::json& json, DataParallelRank rank,
                                                       std::int64_t num_workers,
                                                       std::optional<std::int64_t> prefetch_factor = {},
                                                       bool repeat = true) {
    nlohmann::json own = json;
    own["num_workers"] = num_workers;
    if (prefetch_factor) own["prefetch_factor"] = *prefetch_factor;
    return build_token_stream(parse_record<DataConfig>(own, {.keys = "data"}),
                              {.vocabulary_size = 50257, .stream = {.rank = rank, .seed = 5, .repeat = repeat}});
  }
  // Microbatches have one sample, so those of a step are the same on any number of ranks.
  static std::multiset<Numbers> step_of(const std::vector<std::unique_ptr<PackStream<TokenBatch>>>& ranks) {
    std::multiset<Numbers> step;
    for (const auto& rank : ranks) {
      for (Numbers& numbers : numbers_of(rank->next().value())) step.insert(std::move(numbers));
    }
    return step;
  }
  static std::vector<std::unique_ptr<PackStream<TokenBatch>>> ranks_of(const nlohmann::json& json, std::int64_t size,
                                                                       std::int64_t num_workers,
                                                                       std::optional<std::int64_t> prefetch = {}) {
    std::vector<std::unique_ptr<PackStream<TokenBatch>>> ranks;
    for (std::int64_t rank = 0; rank < size; ++rank) ranks.push_back(build(json, {rank, size}, num_workers, prefetch));
    return ranks;
  }
};

TEST_P(Kinds, Have_the_same_samples_in_a_step_on_any_number_of_ranks_and_workers) {
  const auto one = ranks_of(job(), 1, 0);
  const auto workers = ranks_of(job(), 1, 4), two = ranks_of(job(), 2, 1, 3), four = ranks_of(job(), 4, 3, 1);
  for (int step = 0; step < 12; ++step) {  // several epochs of the smaller ones
    const auto expected = step_of(one);
    EXPECT_EQ(step_of(workers), expected) << step;
    EXPECT_EQ(step_of(two), expected) << step;
    EXPECT_EQ(step_of(four), expected) << step;
  }
}

TEST_P(Kinds, Resume_at_any_pack_on_other_ranks_and_workers) {
  std::vector<std::multiset<Numbers>> expected;
  std::vector<nlohmann::json> states;
  const auto uninterrupted = ranks_of(job(), 1, 0);
  for (int step = 0; step < 9; ++step) {
    states.push_back(uninterrupted.front()->state());
    expected.push_back(step_of(uninterrupted));
  }
  // A job of two ranks is killed after each step and goes on with one, then four; between them the tests of all kinds
  // have every loader at every number of ranks.
  const std::int64_t sizes[] = {2, 1, 4};
  struct Loader {
    std::int64_t num_workers;
    std::optional<std::int64_t> prefetch = {};
  };
  const std::vector<Loader> loaders{{0}, {1, 1}, {4, 1}, {1, 2}, {4, 2}, {1, 3}, {4, 3}};
  static std::size_t next_loader = 0;
  nlohmann::json position = states.front();
  for (int step = 0; step < 9; ++step) {
    EXPECT_EQ(position, states[step]) << "the position is that of one rank";
    const Loader& loader = loaders[next_loader++ % loaders.size()];
    const auto ranks = ranks_of(job(), sizes[step % 3], loader.num_workers, loader.prefetch);
    for (const auto& rank : ranks) rank->load_state(states[step]);
    EXPECT_EQ(step_of(ranks), expected[step]) << step;
    position = ranks.back()->state();
    position["layout"] = states.front().at("layout");
  }
}

TEST_P(Kinds, Refuse_the_position_of_another_order) {
  const auto& [kind, view, shuffle] = GetParam();
  const auto saved = build(job(), {0, 1}, 0)->state();
  nlohmann::json other = job();
  if (other.contains("sources")) {
    other["sources"][0]["weight"] = 3.0;
  } else if (view == std::string("packed")) {
    other["view"]["buffer_size"] = 39;
  } else if (view == std::string("sorted")) {
    other["view"]["sort_buffer_size"] = 20;
  } else {
    other["shuffle"] = !shuffle;
  }
  EXPECT_THROW(build(other, {0, 1}, 0)->load_state(saved), StateError);
}

std::string name_of(const ::testing::TestParamInfo<std::tuple<const char*, const char*, bool>>& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param) +
         (std::get<2>(info.param) ? "_shuffled" : "");
}
INSTANTIATE_TEST_SUITE_P(Documents, Kinds,
                         ::testing::Combine(::testing::Values("text", "jsonl", "chats", "parquet", "arrow", "tokens",
                                                              "megatron", "mixture"),
                                            ::testing::Values("documents", "sorted", "packed"), ::testing::Bool()),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Concatenated, Kinds,
                         ::testing::Combine(::testing::Values("text", "parquet", "arrow", "tokens", "megatron",
                                                              "mixture"),
                                            ::testing::Values("concatenated"), ::testing::Bool()),
                         name_of);

class KindsOnce : public Kinds {};

TEST_P(KindsOnce, Have_every_document_once_in_a_pass) {
  nlohmann::json json = job();
  json["drop_last"] = false;
  json["global_batch_size"] = 1;
  const auto stream = build(json, {0, 1}, 2, {}, /*repeat=*/false);
  std::multiset<std::string> seen;
  while (auto pack = stream->next()) {
    for (const TokenBatch& batch : *pack) {
      std::string row;
      for (const std::int64_t id : values(batch.input_ids)) row += static_cast<char>(id);
      for (std::size_t at = 0; at < row.size();) {  // without the end, which is only a label
        if (row[at] == '\0') break;
        std::size_t end = at + 1;
        const auto positions = values(batch.position_ids);
        while (end < row.size() && positions[end] > 0) ++end;
        seen.insert(row.substr(at, end - at));
        at = end;
      }
    }
  }
  std::multiset<std::string> expected;
  for (int i = 0; i < 90; ++i) {
    expected.insert(std::string(2 + i * 7 % 13, static_cast<char>('a' + i % 26)) + std::to_string(i));
  }
  EXPECT_EQ(seen, expected);
}
INSTANTIATE_TEST_SUITE_P(Documents, KindsOnce,
                         ::testing::Combine(::testing::Values("parquet", "arrow", "tokens"),
                                            ::testing::Values("documents", "packed"), ::testing::Bool()),
                         name_of);

class KindsOfOneJob : public Kinds {};

TEST_F(KindsOfOneJob, Refuse_pairs_in_the_concatenated_view) {
  nlohmann::json json = source("jsonl");
  add_view(json, "concatenated");
  json.update({{"global_batch_size", 4}, {"microbatch_size", 1}});
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, {0, 1}, 0); }), HasSubstr("prompt_column"));
}

TEST_F(KindsOfOneJob, Refuse_mixtures_of_packed_sources_and_others) {
  nlohmann::json packed = source("tokens"), cut = source("tokens");
  add_view(packed, "packed");
  add_view(cut, "concatenated");
  const nlohmann::json json = {{"kind", "mixture"},
                               {"sources", {{{"weight", 1}, {"source", packed}}, {{"weight", 1}, {"source", cut}}}},
                               {"global_batch_size", 4},
                               {"microbatch_size", 1}};
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, {0, 1}, 0); }), HasSubstr("all packed or all not"));
}

TEST_F(KindsOfOneJob, Refuse_ends_of_documents_that_are_no_token) {
  nlohmann::json json = source("parquet");
  add_view(json, "packed");
  json.update({{"global_batch_size", 4}, {"microbatch_size", 1}, {"end_of_document", "<|end|>"}});
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, {0, 1}, 0); }), HasSubstr("'<|end|>'"));
}

TEST_F(KindsOfOneJob, Refuse_or_cut_documents_longer_than_a_sequence) {
  for (const auto* view : {"documents", "packed"}) {
    nlohmann::json json = source("tokens");
    add_view(json, view);
    json.update({{"global_batch_size", 4}, {"microbatch_size", 1}, {"sequence_length", 10}});
    EXPECT_THAT(test::message_of<IoError>([&] {
                  (void)build(json, {0, 1}, 0);
                }),
                AllOf(HasSubstr("at most 10 positions"), HasSubstr("tokens.bin")));
    for (const auto* rule : {"truncate", "split", "skip"}) {
      json["view"]["long_documents"] = rule;
      EXPECT_NO_THROW((void)build(json, {0, 1}, 0)->next()) << rule;
    }
  }
}

// The prompts of pairs are read and not predicted.
TEST_F(KindsOfOneJob, Do_not_predict_the_prompts_of_pairs) {
  nlohmann::json json = source("jsonl");
  add_view(json, "documents");
  json.update({{"global_batch_size", 1}, {"microbatch_size", 1}});
  const auto stream = build(json, {0, 1}, 0);
  (void)stream->next();
  (void)stream->next();
  const auto pack = stream->next().value();  // "??" and "ccc...2."
  const auto ids = values(pack[0].input_ids), labels = values(pack[0].labels);
  EXPECT_EQ(ids[0], '?');
  EXPECT_EQ(ids[1], '?');
  EXPECT_EQ(labels[0], kIgnoreIndex);
  EXPECT_EQ(labels[1], 'c');
  EXPECT_EQ(labels.back(), '.');
}

// What the assistant says is predicted, with the token that ends it.
TEST_F(KindsOfOneJob, Predict_what_the_assistant_of_a_conversation_says) {
  for (const auto* view : {"documents", "packed", "streamed"}) {
    nlohmann::json json = source("chats");
    json.update(
        {{"sequence_length", 64}, {"view", {{"kind", view}}}, {"global_batch_size", 1}, {"microbatch_size", 1}});
    const auto stream = build(json, {0, 1}, 0, {}, /*repeat=*/false);
    std::int64_t num_letters = 0, num_ends = 0;
    while (auto pack = stream->next()) {
      for (const TokenBatch& batch : *pack) {
        for (const std::int64_t label : values(batch.labels)) {
          ASSERT_TRUE(label == 'a' || label == 258 || label == kIgnoreIndex) << label;
          num_letters += label == 'a' ? 1 : 0;
          num_ends += label == 258 ? 1 : 0;
        }
      }
    }
    EXPECT_EQ(num_letters, 90 * 2) << view;
    EXPECT_EQ(num_ends, 90) << view;
  }
  nlohmann::json json = source("chats");
  json.erase("chat_template");
  json.update(
      {{"sequence_length", 64}, {"view", {{"kind", "packed"}}}, {"global_batch_size", 1}, {"microbatch_size", 1}});
  EXPECT_THAT(test::message_of<ConfigError>([&] {
                (void)build(json, {0, 1}, 0);
              }),
              HasSubstr("expected chat_template.jinja"));
  add_view(json, "concatenated");
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, {0, 1}, 0); }), HasSubstr("messages_column"));
}

}  // namespace
}  // namespace d9d::token_stream_kinds_test
