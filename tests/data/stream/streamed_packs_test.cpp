#include "d9d/data/stream/streamed_packs.h"

#include <map>
#include <set>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/data/text/jsonl_rows.h"

#include "tests/data/sequences/sample_values.h"
#include "tests/data/source/source_test.h"

namespace d9d::streamed_packs_test {
namespace {

using test::Ids;
using test::values;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string document(int i) { return std::string(1 + i * 7 % 19, static_cast<char>('a' + i % 26)) + std::to_string(i); }

class StreamOfRows : public test::SourceTest {
 protected:
  // 200 documents of 3 to 22 tokens in about ten parts.
  std::shared_ptr<const TextRows> rows(int bad_row = -1) const {
    auto& kept = rows_[bad_row];  // a rewritten file would be different data
    if (kept) return kept;
    std::string text;
    for (int i = 0; i < 200; ++i) text += i == bad_row ? "nothing\n" : "{\"text\": \"" + document(i) + "\"}\n";
    const auto path = write(bad_row < 0 ? "good_a.jsonl" : "bad_a.jsonl", text);
    return kept = std::make_shared<const JsonlRows>(std::vector<std::filesystem::path>{path},
                                                    std::vector<std::string>{"text"}, 500);
  }
  static StreamedOptions options() {
    return {
        .part = {.tokenize = {.end_of_document = 0}, .max_positions = 24, .buffer_size = 8, .seed = 3, .shuffle = true},
        .tokens_per_step = 180,
        .global_batch_size = 4,
        .microbatch_size = 1};
  }
  std::unique_ptr<StreamedPacks> build(StreamedOptions own, DataParallelRank rank = {}, std::int64_t num_workers = 0,
                                       int bad_row = -1) const {
    own.rank = rank;
    own.num_workers = num_workers;
    return std::make_unique<StreamedPacks>(rows(bad_row), std::make_shared<const ByteEncoder>(), own);
  }

 private:
  mutable std::map<int, std::shared_ptr<const TextRows>> rows_;
};

using Numbers = std::vector<Ids>;

Numbers numbers_of(const TokenBatch& batch) {
  return {values(batch.input_ids), values(batch.labels), values(batch.packed->cu_seqlens)};
}

// The microbatches of a step of all ranks, by their numbers.
std::map<std::int64_t, Numbers> step_of(const std::vector<std::unique_ptr<StreamedPacks>>& ranks) {
  std::map<std::int64_t, Numbers> step;
  std::set<std::size_t> sizes;
  for (const auto& rank : ranks) {
    const auto pack = rank->next().value();
    const auto numbers = rank->microbatch_numbers();
    EXPECT_EQ(numbers.size(), pack.size());
    sizes.insert(pack.size());
    for (std::size_t i = 0; i < pack.size(); ++i) step[numbers[i]] = numbers_of(pack[i]);
  }
  EXPECT_EQ(sizes.size(), 1U) << "all ranks have as many microbatches";
  return step;
}

TEST_F(StreamOfRows, Has_the_same_microbatches_in_a_step_on_any_number_of_ranks_and_workers) {
  for (const auto mode : {ShardIndexingMode::kSequential, ShardIndexingMode::kChunked}) {
    StreamedOptions own = options();
    own.mode = mode;
    own.repeat = true;
    const auto ranks_of = [&](std::int64_t size, std::int64_t num_workers) {
      std::vector<std::unique_ptr<StreamedPacks>> ranks;
      for (std::int64_t rank = 0; rank < size; ++rank) ranks.push_back(build(own, {rank, size}, num_workers));
      return ranks;
    };
    const auto one = ranks_of(1, 0), workers = ranks_of(1, 4), two = ranks_of(2, 1), four = ranks_of(4, 2);
    std::set<std::size_t> num_microbatches;
    for (int step = 0; step < 30; ++step) {  // more than two epochs
      const auto expected = step_of(one);
      num_microbatches.insert(expected.size());
      EXPECT_EQ(step_of(workers), expected) << step;
      EXPECT_EQ(step_of(two), expected) << step;
      EXPECT_EQ(step_of(four), expected) << step;
    }
    EXPECT_GT(num_microbatches.size(), 1U) << "the budget asks for a varying number";
  }
}

TEST_F(StreamOfRows, Resumes_at_any_pack_on_other_ranks_and_workers) {
  StreamedOptions own = options();
  own.repeat = true;
  std::vector<std::unique_ptr<StreamedPacks>> uninterrupted;
  uninterrupted.push_back(build(own));
  for (int step = 0; step < 20; ++step) {
    const nlohmann::json state = uninterrupted.front()->state();
    const auto expected = step_of(uninterrupted);
    const std::int64_t size = 1LL << step % 3;
    std::vector<std::unique_ptr<StreamedPacks>> resumed;
    for (std::int64_t rank = 0; rank < size; ++rank) {
      resumed.push_back(build(own, {rank, size}, step % 5));
      (void)resumed.back()->next();  // moves it to another position
      resumed.back()->load_state(state);
    }
    EXPECT_EQ(step_of(resumed), expected) << step;
    EXPECT_EQ(resumed.back()->state(), uninterrupted.front()->state()) << step;
  }
}

TEST_F(StreamOfRows, Has_every_document_once_in_a_pass) {
  StreamedOptions own = options();
  own.global_batch_size = 1;
  own.tokens_per_step = 0;
  std::multiset<std::string> seen, expected;
  for (int i = 0; i < 200; ++i) expected.insert(document(i));
  const auto stream = build(own, {}, 3);
  EXPECT_EQ(stream->total_steps(), std::nullopt);
  while (auto pack = stream->next()) {
    const TokenBatch& batch = pack->front();
    const Ids ids = values(batch.input_ids), labels = values(batch.labels), ends = values(batch.packed->cu_seqlens);
    for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
      if (labels[ends[i]] == kIgnoreIndex) continue;  // padding
      EXPECT_EQ(labels[ends[i + 1] - 1], 0);
      seen.insert(std::string(ids.begin() + ends[i], ids.begin() + ends[i + 1]));
    }
  }
  EXPECT_EQ(seen, expected);
}

TEST_F(StreamOfRows, Names_a_bad_row_and_stays_or_skips_and_counts_it) {
  for (const std::int64_t num_workers : {0, 2}) {
    const auto stream = build(options(), {}, num_workers, 150);
    nlohmann::json before;  // the position at which the failing step begins
    const auto read = [&] {
      do before = stream->state();
      while (stream->next());
    };
    EXPECT_THAT(test::message_of<IoError>(read), AllOf(HasSubstr("line 151 of"), HasSubstr("a.jsonl")));
    EXPECT_EQ(stream->state(), before);
    EXPECT_THAT(test::message_of<IoError>(read), HasSubstr("line 151 of"));
    EXPECT_EQ(stream->state(), before);
    StreamedOptions skipping = options();
    skipping.part.tokenize.bad_rows = BadRows::kSkip;
    std::string log;
    skipping.log = Logger().with_sink([&log](std::string_view line) { log += line; });
    const auto skipped = build(skipping, {}, num_workers, 150);
    while (skipped->next()) {
    }
    EXPECT_THAT(log, HasSubstr("skipped 1 bad rows"));
  }
}

TEST_F(StreamOfRows, Names_the_row_of_a_document_that_is_too_long) {
  StreamedOptions own = options();
  own.part.max_positions = 20;
  own.part.shuffle = false;
  const auto stream = build(own);
  EXPECT_THAT(test::message_of<IoError>([&] {
                while (stream->next()) {
                }
              }),
              AllOf(HasSubstr("at most 20 positions"), HasSubstr("a.jsonl"), HasSubstr("line ")));
}

TEST_F(StreamOfRows, Refuses_the_position_of_other_rows_or_another_order) {
  const nlohmann::json saved = build(options())->state();
  EXPECT_NO_THROW(build(options())->load_state(saved));
  StreamedOptions other_seed = options(), unshuffled = options(), other_length = options();
  other_seed.part.seed = 4;
  unshuffled.part.shuffle = false;
  other_length.part.max_positions = 25;
  for (const auto& other : {other_seed, unshuffled, other_length}) {
    EXPECT_THROW(build(other)->load_state(saved), StateError);
  }
  EXPECT_THROW(build(options())->load_state({{"part", 1}}), StateError);
  nlohmann::json before = saved;
  before["sequence"] = -1;
  EXPECT_THROW(build(options())->load_state(before), StateError);
  EXPECT_THROW(build(options(), {}, 0, 3)->load_state(saved), StateError);
}

// For example files that are local to a machine, or that were copied between two runs.
TEST_F(StreamOfRows, Takes_the_position_in_copies_of_its_files) {
  std::filesystem::create_directories(folder / "copy");
  StreamedOptions own = options();
  const auto first = build(own);
  (void)first->next();
  const nlohmann::json saved = first->state();
  std::filesystem::copy(folder / "good_a.jsonl", folder / "copy" / "b.jsonl");
  const auto copy = std::make_shared<const JsonlRows>(std::vector<std::filesystem::path>{folder / "copy" / "b.jsonl"},
                                                      std::vector<std::string>{"text"}, 500);
  StreamedPacks moved(copy, std::make_shared<const ByteEncoder>(), own);
  moved.load_state(saved);
  EXPECT_EQ(moved.state(), saved);
  EXPECT_EQ(numbers_of(moved.next().value().front()), numbers_of(first->next().value().front()));
}

// Earlier versions identified the rows by a hash of names and times, which can no longer be compared.
TEST_F(StreamOfRows, Takes_the_position_of_an_earlier_version_and_says_what_it_does_not_compare) {
  nlohmann::json saved = build(options())->state();
  saved.at("order").erase("data");
  saved.at("order")["rows"] = 1234567890123456789U;
  StreamedOptions own = options();
  std::string log;
  own.log = Logger().with_sink([&log](std::string_view line) { log += line; });
  build(own)->load_state(saved);
  EXPECT_THAT(log, HasSubstr("does not say what its data was"));
  own.part.seed = 4;
  EXPECT_THAT(test::message_of<StateError>([&] { build(own)->load_state(saved); }), HasSubstr("the data order"));
}

TEST_F(StreamOfRows, Refuses_rows_without_a_document) {
  const auto empty = std::make_shared<const JsonlRows>(
      std::vector<std::filesystem::path>{write("empty.jsonl", "\n\n\n")}, std::vector<std::string>{"text"});
  StreamedOptions endless = options();
  endless.repeat = true;
  StreamedPacks stream(empty, std::make_shared<const ByteEncoder>(), endless);
  EXPECT_THROW((void)stream.next(), IoError);
}

}  // namespace
}  // namespace d9d::streamed_packs_test
