// Data of every kind in every view gives the same samples on any number of ranks and workers, and after any
// interruption.
#include <malloc.h>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/data/build/build_documents.h"
#include "d9d/data/build/make_pack_stream.h"
#include "d9d/data/text/tokenize_rows.h"

#include "tests/data/build/kinds.h"
#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::token_stream_kinds_test {
namespace {

using test::Ahead;
using test::Kinds;
using test::name_of_kind;
using test::Numbers;
using test::numbers_of;
using test::Ranks;
using test::values;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_P(Kinds, Have_the_same_samples_in_a_step_on_any_number_of_ranks_and_workers) {
  const Ranks one = ranks_of(job(), 1), workers = ranks_of(job(), 1, {.num_workers = 4, .packs = 3});
  const Ranks two = ranks_of(job(), 2, {.num_workers = 1, .packs = 1, .prefetch_factor = 3});
  const Ranks four = ranks_of(job(), 4, {.num_workers = 3, .packs = 2, .prefetch_factor = 1});
  for (int step = 0; step < 12; ++step) {  // several epochs of the smaller datasets
    const auto expected = step_of(one);
    EXPECT_EQ(step_of(workers), expected) << step;
    EXPECT_EQ(step_of(two), expected) << step;
    EXPECT_EQ(step_of(four), expected) << step;
  }
}

TEST_P(Kinds, Are_the_same_on_all_stages_of_a_pipeline) {
  const DeviceMeshParameters mesh{.pipeline_parallel = 2, .data_parallel_replicate = 2};
  std::map<std::int64_t, Ranks> stages;  // by their data-parallel rank
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const DistContext context({.mesh = mesh, .world = test::lone_rank(rank, 4)});
    stages[context.data_parallel_rank()].push_back(build(job(), on_rank_of(context, endless({}))));
  }
  const Ranks one = ranks_of(job(), 1);
  ASSERT_EQ(stages.size(), 2U);
  for (int step = 0; step < 6; ++step) {
    std::multiset<Numbers> found;
    for (const auto& [rank, streams] : stages) {
      ASSERT_EQ(streams.size(), 2U);
      const auto first = numbers_of(streams[0]->next().value());
      EXPECT_EQ(numbers_of(streams[1]->next().value()), first) << step;
      EXPECT_EQ(streams[1]->microbatch_numbers(), streams[0]->microbatch_numbers());
      found.insert(first.begin(), first.end());
    }
    EXPECT_EQ(found, step_of(one)) << step;
  }
}

// A job of two ranks is killed after each step and resumes with one, then four ranks, and with other prefetching each
// time: each number of ranks is combined with each number of workers and of packs.
TEST_P(Kinds, Resume_at_any_pack_on_other_ranks_and_workers) {
  const std::int64_t sizes[] = {2, 1, 4}, num_workers[] = {0, 1, 4};
  const Ranks uninterrupted = ranks_of(job(), 1);
  nlohmann::json position = uninterrupted.front()->state();
  const nlohmann::json first = position;
  for (std::int64_t step = 0; step < 36; ++step) {
    Ahead ahead{.num_workers = num_workers[step % 3], .packs = step / 3 % 4};
    if (ahead.num_workers > 0 && ahead.packs > 0) ahead.prefetch_factor = ahead.packs;
    const Ranks ranks = ranks_of(job(), sizes[(step + step / 12) % 3], ahead);
    for (const auto& rank : ranks) rank->load_state(position);
    const auto expected = step_of(uninterrupted);
    ASSERT_EQ(step_of(ranks), expected) << step;
    for (const auto& rank : ranks) EXPECT_EQ(rank->state(), ranks.front()->state());
    position = ranks.front()->state();
    if (position.contains("layout")) position["layout"] = first.at("layout");
    EXPECT_EQ(position, uninterrupted.front()->state()) << "the position is that of one rank";
  }
}

TEST_P(Kinds, Use_no_more_memory_over_a_thousand_packs) {
  const auto stream = build(job(), endless({}), {.num_workers = 1, .packs = 1});
  const auto read = [&](int num_packs) {
    for (int i = 0; i < num_packs; ++i) (void)stream->next();
    return ::mallinfo2().uordblks;
  };
  const auto after_hundred = read(100);
  EXPECT_LE(read(1000), after_hundred + (128 << 10)) << "some 2 KiB a pack would be 2 MiB";
}

TEST_P(Kinds, Refuse_the_position_of_another_order) {
  const auto& [kind, view, shuffle] = GetParam();
  const auto saved = build(job(), endless({}))->state();
  nlohmann::json other = job();
  if (other.contains("dataset")) {
    other["presort_buffer_size"] = 20;
  } else if (other.contains("sources")) {
    other["sources"][0]["weight"] = 3.0;
  } else if (view == std::string("packed")) {
    other["view"]["buffer_size"] = 39;
  } else if (view == std::string("sorted")) {
    other["view"]["sort_buffer_size"] = 20;
  } else {
    other["shuffle"] = !shuffle;
  }
  EXPECT_THROW(build(other, endless({}))->load_state(saved), StateError);
}

INSTANTIATE_TEST_SUITE_P(Documents, Kinds,
                         ::testing::Combine(::testing::Values("text", "jsonl", "chats", "parquet", "arrow", "tokens",
                                                              "megatron", "mixture"),
                                            ::testing::Values("documents", "sorted", "packed"), ::testing::Bool()),
                         name_of_kind);
INSTANTIATE_TEST_SUITE_P(Concatenated, Kinds,
                         ::testing::Combine(::testing::Values("text", "parquet", "arrow", "tokens", "megatron",
                                                              "mixture"),
                                            ::testing::Values("concatenated"), ::testing::Bool()),
                         name_of_kind);
INSTANTIATE_TEST_SUITE_P(Of016, Kinds,
                         ::testing::Combine(::testing::Values("dataset"), ::testing::Values("presorted"),
                                            ::testing::Bool()),
                         name_of_kind);
INSTANTIATE_TEST_SUITE_P(Streamed, Kinds,
                         ::testing::Combine(::testing::Values("text", "jsonl", "chats", "parquet", "arrow"),
                                            ::testing::Values("streamed"), ::testing::Bool()),
                         name_of_kind);

class KindsOnce : public Kinds {};

TEST_P(KindsOnce, Have_every_document_once_in_a_pass) {
  nlohmann::json json = job();
  json["drop_last"] = false;
  json["global_batch_size"] = 1;
  const auto stream = build(json, {}, {.num_workers = 2});
  std::multiset<std::string> seen;
  while (auto pack = stream->next()) {
    for (const TokenBatch& batch : *pack) {
      std::string row;
      for (const std::int64_t id : values(batch.input_ids)) row += static_cast<char>(id);
      for (std::size_t at = 0; at < row.size();) {  // the token that ends a document is only a label
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
                         name_of_kind);

class KindsOfOneJob : public Kinds {};

TEST_F(KindsOfOneJob, Refuse_pairs_in_the_concatenated_view) {
  nlohmann::json json = source("jsonl");
  add_view(json, "concatenated");
  json.update({{"global_batch_size", 4}, {"microbatch_size", 1}});
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, endless({})); }), HasSubstr("prompt_column"));
}

TEST_F(KindsOfOneJob, Refuse_mixtures_of_packed_sources_and_others) {
  nlohmann::json packed = source("tokens"), cut = source("tokens");
  add_view(packed, "packed");
  add_view(cut, "concatenated");
  const nlohmann::json json = {{"kind", "mixture"},
                               {"sources", {{{"weight", 1}, {"source", packed}}, {{"weight", 1}, {"source", cut}}}},
                               {"global_batch_size", 4},
                               {"microbatch_size", 1}};
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, endless({})); }),
              HasSubstr("all packed or all not"));
}

TEST_F(KindsOfOneJob, Refuse_mixtures_of_packed_sources_of_different_lengths) {
  nlohmann::json one = source("tokens");
  add_view(one, "packed");
  nlohmann::json other = one;
  other["sequence_length"] = 1 + one["sequence_length"].get<int>();
  const nlohmann::json json = {{"kind", "mixture"},
                               {"sources", {{{"weight", 1}, {"source", one}}, {{"weight", 1}, {"source", other}}}},
                               {"global_batch_size", 4},
                               {"microbatch_size", 1}};
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, endless({})); }),
              AllOf(HasSubstr("one sequence_length in all packed sources"), HasSubstr("in source 1")));
}

TEST_F(KindsOfOneJob, Refuse_positions_of_an_order_that_depends_on_other_lengths) {
  const auto job = [&](const char* view, int length, const char* rule) {
    nlohmann::json json = source("tokens");
    add_view(json, view);
    json.update({{"global_batch_size", 4}, {"microbatch_size", 1}, {"sequence_length", length}});
    json["view"]["long_documents"] = rule;
    if (view == std::string("documents")) json["view"]["sort_buffer_size"] = 16;
    return build(json, endless({}));
  };
  for (const auto* view : {"documents", "packed"}) {
    const auto saved = job(view, 10, "truncate")->state();
    EXPECT_NO_THROW(job(view, 10, "truncate")->load_state(saved));
    EXPECT_THROW(job(view, 12, "truncate")->load_state(saved), StateError) << view;
    EXPECT_THROW(job(view, 10, "skip")->load_state(saved), StateError) << view;
  }
}

TEST_F(KindsOfOneJob, Refuse_ends_of_documents_that_are_no_token) {
  nlohmann::json json = source("parquet");
  add_view(json, "packed");
  json.update({{"global_batch_size", 4}, {"microbatch_size", 1}, {"end_of_document", "<|end|>"}});
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, endless({})); }), HasSubstr("'<|end|>'"));
}

TEST_F(KindsOfOneJob, Refuse_or_cut_documents_longer_than_a_sequence) {
  for (const auto* view : {"documents", "packed"}) {
    nlohmann::json json = source("tokens");
    add_view(json, view);
    json.update({{"global_batch_size", 4}, {"microbatch_size", 1}, {"sequence_length", 10}});
    EXPECT_THAT(test::message_of<IoError>([&] { (void)build(json, endless({})); }),
                AllOf(HasSubstr("at most 10 positions"), HasSubstr("tokens.bin")));
    for (const auto* rule : {"truncate", "split", "skip"}) {
      json["view"]["long_documents"] = rule;
      EXPECT_NO_THROW((void)build(json, endless({}))->next()) << rule;
    }
  }
}

// The prompts of pairs are inputs and not predicted.
TEST_F(KindsOfOneJob, Do_not_predict_the_prompts_of_pairs) {
  nlohmann::json json = source("jsonl");
  add_view(json, "documents");
  json.update({{"global_batch_size", 1}, {"microbatch_size", 1}});
  const auto stream = build(json, endless({}));
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
    const auto stream = build(json, {});
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
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, endless({})); }),
              HasSubstr("expected chat_template.jinja"));
  add_view(json, "concatenated");
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)build(json, endless({})); }), HasSubstr("messages_column"));
}

// As a job tokenises them itself.
TEST_F(KindsOfOneJob, Of_a_folder_of_tokens_have_the_targets_that_it_says) {
  const auto tokenised = root() / "tokenised";
  std::filesystem::remove_all(tokenised);
  nlohmann::json json = source("chats");
  nlohmann::ordered_json rows_of_chats = json;
  rows_of_chats["sequence_length"] = 64;
  const TokenisableRows rows =
      build_rows(parse_record<SourceConfig>(rows_of_chats, {.keys = "source"}), /*vocabulary_size=*/1000);
  (void)tokenize_rows(*rows.rows, *rows.encoder, rows.options, tokenised);
  const nlohmann::json keys = {
      {"sequence_length", 64}, {"view", {{"kind", "packed"}}}, {"global_batch_size", 1}, {"microbatch_size", 1}};
  json.update(keys);
  nlohmann::json folder = {{"kind", "tokens"}, {"path", tokenised}};
  folder.update(keys);
  const auto theirs = build(json, {}), ours = build(folder, {});
  while (auto pack = theirs->next()) EXPECT_EQ(numbers_of(*ours->next()), numbers_of(*pack));
  EXPECT_FALSE(ours->next());

  const auto error = [&](const nlohmann::json& data) {
    return test::message_of<ConfigError>([&] { (void)build(data, endless({})); });
  };
  folder["view"] = {{"kind", "concatenated"}};
  EXPECT_THAT(error(folder), HasSubstr("in which every label counts"));
  folder["dtype"] = "uint16";
  folder["view"] = {{"kind", "packed"}};
  EXPECT_THAT(error(folder), HasSubstr("manifest.json says them, got dtype"));
  folder["path"] = root() / "tokens.bin";
  folder.erase("dtype");
  EXPECT_THAT(error(folder), HasSubstr("expected dtype with the file"));
}

}  // namespace
}  // namespace d9d::token_stream_kinds_test
