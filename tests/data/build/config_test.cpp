#include "d9d/data/build/config.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

#include "tests/support/io_faults.h"

namespace d9d::config_test {
namespace {

using ::testing::HasSubstr;

DataConfig parse(const std::string& text) { return parse_record<DataConfig>(Json::parse(text), {.keys = "data"}); }

// A text source with additional loader keys.
std::string error_with(const std::string& keys) {
  try {
    std::ignore = parse(R"({"kind": "text", "paths": ["a"], "sequence_length": 8, )" + keys + "}");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DataConfig, Reads_loader_keys_beside_those_of_the_source) {
  const auto config = parse(R"({"kind": "tokens", "path": "a.bin", "dtype": "uint32", "sequence_length": 8,
                                "global_batch_size": 4, "microbatch_size": 2, "num_workers": 0, "shuffle": true,
                                "shard_indexing_mode": "chunked"})");
  EXPECT_EQ(std::get<TokensDataConfig>(config).source.dtype, TokenDtype::kUint32);
  EXPECT_TRUE(loader_config(config).shuffle);
  EXPECT_EQ(loader_config(config).shard_indexing_mode, ShardIndexingMode::kChunked);
  EXPECT_EQ(loader_config(config).drop_last, std::nullopt);
  EXPECT_TRUE(loader_config(config).pin_memory);
}

TEST(DataConfig, Reads_sources_with_their_views_and_mixtures_of_them) {
  const auto config = parse(R"({"kind": "mixture", "global_batch_size": 4, "microbatch_size": 2, "num_workers": 0,
      "sources": [
        {"weight": 3, "source": {"kind": "jsonl", "paths": ["a"], "column": "code", "tokenizer": "t.json",
                                 "end_of_document": "<|end|>", "bad_rows": "skip", "num_proc": 2, "cache": "c",
                                 "sequence_length": 8, "view": {"kind": "packed", "long_documents": "split"}}},
        {"weight": 0.5, "source": {"kind": "megatron", "paths": ["b.idx"], "sequence_length": 8,
                                   "view": {"kind": "documents", "sort_buffer_size": 16}}}]})");
  const auto& sources = std::get<MixtureDataConfig>(config).sources;
  ASSERT_EQ(sources.size(), 2U);
  EXPECT_EQ(sources[0].weight, 3);
  const auto& jsonl = std::get<JsonlSource>(sources[0].source);
  EXPECT_EQ(jsonl.columns.column, "code");
  EXPECT_EQ(jsonl.columns.tokenization.bad_rows, BadRows::kSkip);
  EXPECT_EQ(std::get<PackedViewConfig>(jsonl.sequence.view).long_documents, LongDocuments::kSplit);
  const auto& megatron = std::get<MegatronSource>(sources[1].source);
  EXPECT_EQ(std::get<DocumentsViewConfig>(megatron.sequence.view).sort_buffer_size, 16);
}

TEST(DataConfig, Of_conversations_has_a_tokenizer_and_no_column_of_texts) {
  const std::string source = R"("kind": "jsonl", "paths": ["a"], "messages_column": "m", "sequence_length": 8,
      "global_batch_size": 1, "microbatch_size": 1, "num_workers": 0)";
  const auto config = parse("{" + source + R"(, "tokenizer": "t", "chat_template": "qwen2.5"})");
  EXPECT_EQ(std::get<JsonlDataConfig>(config).source.columns.chat_template, "qwen2.5");
  const auto error = [&](const std::string& keys) {
    return test::message_of<ConfigError>([&] { (void)parse("{" + keys + "}"); });
  };
  EXPECT_THAT(error(source), HasSubstr("expected a tokenizer with messages_column"));
  EXPECT_THAT(error(source + R"(, "tokenizer": "t", "prompt_column": "p")"), HasSubstr("prompt_column, got both"));
  EXPECT_THAT(error(source + R"(, "tokenizer": "t", "add_special_tokens": true)"), HasSubstr("add_special_tokens"));
  EXPECT_THAT(error(R"("kind": "jsonl", "paths": ["a"], "chat_template": "qwen3", "sequence_length": 8,
      "global_batch_size": 1, "microbatch_size": 1, "num_workers": 0)"),
              HasSubstr("expected messages_column with chat_template"));
  EXPECT_THAT(error(R"("kind": "jsonl", "paths": ["a"], "tools_column": "t", "sequence_length": 8,
      "global_batch_size": 1, "microbatch_size": 1, "num_workers": 0)"),
              HasSubstr("expected messages_column with tools_column"));
  const auto of_kwargs = [&](const std::string& kwargs) {
    return error(source + R"(, "tokenizer": "t", "chat_template_kwargs": )" + kwargs);
  };
  EXPECT_THAT(of_kwargs("true"), HasSubstr("expected an object as chat_template_kwargs"));
  EXPECT_THAT(of_kwargs(R"({"tools": []})"), HasSubstr("that rows do not set, got \"tools\""));
}

TEST(DataConfig, Without_a_kind_is_the_record_of_a_dataset) {
  const auto config =
      parse(R"({"dataset": "d", "split": "train", "text_column": "text", "use_samples": 100000, "shuffle_seed": 42,
                "tokenizer": "tokenizer.json", "num_proc": 16, "presort_buffer_size": 1000, "global_batch_size": 128,
                "microbatch_size": 8, "num_workers": 4})");
  EXPECT_EQ(std::get<DatasetDataConfig>(config).presort_buffer_size, 1000);
}

TEST(DataConfig, Reads_the_mixture_that_its_page_shows) {
  std::ifstream page(D9D_SOURCE_DIR "/docs/data.md");
  const std::string text{std::istreambuf_iterator<char>(page), {}};
  const std::size_t begin = text.find("```json\n{\"kind\": \"mixture\"") + 8;
  const auto json = nlohmann::json::parse(text.substr(begin, text.find("```", begin) - begin));
  const auto config = parse_record<DataConfig>(json, {.keys = "data"});
  EXPECT_EQ(std::get<MixtureDataConfig>(config).sources.size(), 2U);
}

TEST(DataConfig, Refuses_loader_keys_that_contradict_each_other) {
  EXPECT_EQ(error_with(R"("global_batch_size": 4, "microbatch_size": 2, "num_workers": 0)"), "accepted");
  EXPECT_EQ(error_with(R"("global_batch_size": 5, "microbatch_size": 2, "num_workers": 0)"),
            "[config] data.global_batch_size: expected a multiple of data.microbatch_size = 2, times "
            "mesh.data_parallel_replicate * mesh.data_parallel_shard, got 5. Change one of them.");
  EXPECT_THAT(
      error_with(R"("global_batch_size": 4, "microbatch_size": 2, "num_workers": 0, "persistent_workers": true)"),
      HasSubstr("expected num_workers >= 1 with persistent_workers"));
  EXPECT_THAT(error_with(R"("global_batch_size": 4, "microbatch_size": 2, "num_workers": 0, "prefetch_factor": 2)"),
              HasSubstr("expected num_workers >= 1 with a prefetch_factor"));
}

}  // namespace
}  // namespace d9d::config_test
