// Data of every kind in every view, for tests of properties that all of them must have.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"
#include "d9d/data/build/token_stream.h"
#include "d9d/data/pack/prefetched_packs.h"

#include "tests/data/cache_home.h"
#include "tests/data/sequences/sample_values.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/python.h"

namespace d9d::test {

// The numbers of a microbatch: ids, labels, positions and boundaries.
using Numbers = std::vector<std::vector<std::int64_t>>;

inline Numbers numbers_of(const TokenBatch& batch) {
  Numbers numbers{values(batch.input_ids),
                  values(batch.labels),
                  values(batch.position_ids),
                  {batch.input_ids.sizes().begin(), batch.input_ids.sizes().end()}};
  if (batch.packed) numbers.push_back(values(batch.packed->cu_seqlens));
  return numbers;
}

inline std::vector<Numbers> numbers_of(const std::vector<TokenBatch>& pack) {
  std::vector<Numbers> numbers;
  for (const TokenBatch& batch : pack) numbers.push_back(numbers_of(batch));
  return numbers;
}

// The settings of prefetching: worker threads, and packs.
struct Ahead {
  std::int64_t num_workers = 0;
  std::int64_t packs = 0;                            // PrefetchOptions::prefetch_factor
  std::optional<std::int64_t> prefetch_factor = {};  // of the workers; the view "streamed" has none
};

// The streams of the ranks of one job.
using Ranks = std::vector<std::unique_ptr<PackStream<TokenBatch>>>;

// Texts of several lengths as files of every kind, with bytes as tokens. Parameters: the kind, the view, and whether it
// is shuffled.
class Kinds : public ::testing::TestWithParam<std::tuple<const char*, const char*, bool>> {
 protected:
  static void SetUpTestSuite() {
    static bool is_done = false;  // files are written once for all suites
    if (std::exchange(is_done, true)) return;
    const auto folder = root();
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder / "text");
    std::filesystem::create_directories(folder / "hub");
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
    std::ofstream(folder / "hub" / "train.jsonl") << jsonl;
    std::ofstream(folder / "chats.jsonl") << chats;
    std::ofstream(folder / "tokenizer.json") << byte_tokenizer({"<|im_start|>", "<|im_end|>"});
    std::ofstream(folder / "tokens.bin") << tokens;
    run_python("tests/data/build/make_column_files.py", {(folder / "a.jsonl").string(), folder.string()});
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
    if (view == "streamed") json["view"].update({{"buffer_size", 8}, {"tokens_per_step", 120}});
  }
  static nlohmann::json job() {
    const auto& [kind, view, shuffle] = GetParam();
    nlohmann::json json = {{"kind", kind}};
    if (kind == std::string("dataset")) {  // the record of d9d 0.16, which has its own view
      json = {{"dataset", (root() / "hub").string()},
              {"split", "train"},
              {"text_column", "text"},
              {"use_samples", 70},
              {"shuffle_seed", 3},
              {"tokenizer", (root() / "tokenizer.json").string()},
              {"num_proc", 2},
              {"presort_buffer_size", 16}};
    } else if (kind == std::string("mixture")) {
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
  // The vocabulary is that of the Megatron file; files of other kinds have smaller ones.
  static std::unique_ptr<PackStream<TokenBatch>> build(const nlohmann::json& json, const StreamOptions& options,
                                                       const Ahead& ahead = {}) {
    nlohmann::json own = json;
    own["num_workers"] = ahead.num_workers;
    const bool is_streamed = json.contains("view") && json.at("view").at("kind") == "streamed";
    if (ahead.prefetch_factor && !is_streamed) own["prefetch_factor"] = *ahead.prefetch_factor;
    return std::make_unique<PrefetchedPacks<TokenBatch>>(
        build_token_stream(parse_record<DataConfig>(own, {.keys = "data"}),
                           {.vocabulary_size = 50257, .stream = options}),
        PrefetchOptions{.prefetch_factor = ahead.packs});
  }
  static StreamOptions endless(DataParallelRank rank) { return {.rank = rank, .seed = 5, .repeat = true}; }
  // Microbatches have one sample, so a step has the same microbatches on any number of ranks.
  static std::multiset<Numbers> step_of(const Ranks& ranks) {
    std::multiset<Numbers> step;
    for (const auto& rank : ranks) {
      for (Numbers& numbers : numbers_of(rank->next().value())) step.insert(std::move(numbers));
    }
    return step;
  }
  static Ranks ranks_of(const nlohmann::json& json, std::int64_t size, const Ahead& ahead = {}) {
    Ranks ranks;
    for (std::int64_t rank = 0; rank < size; ++rank) ranks.push_back(build(json, endless({rank, size}), ahead));
    return ranks;
  }

  const CacheHome cache_home{root() / "home"};
};

[[nodiscard]] inline std::string name_of_kind(
    const ::testing::TestParamInfo<std::tuple<const char*, const char*, bool>>& info) {
  return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param) +
         (std::get<2>(info.param) ? "_shuffled" : "");
}

}  // namespace d9d::test
