#include "d9d/data/build/token_stream.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/tree/tree.h"

#include "tests/support/io_faults.h"

namespace d9d::token_stream_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokenStream : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream file(path, std::ios::binary);
    for (std::uint16_t token = 0; token < 41; ++token) file.write(reinterpret_cast<const char*>(&token), sizeof(token));
  }

  // 41 tokens in sequences of 2: 20 samples; sample i starts with token 2 i.
  TokensDataConfig config() const {
    return {.source = {.path = path, .dtype = TokenDtype::kUint16, .sequence = {.sequence_length = 2}},
            .loader = {.global_batch_size = 8, .microbatch_size = 2, .num_workers = 2}};
  }
  std::unique_ptr<PackStream<TokenBatch>> build(const DataConfig& data, StreamOptions options = {}) const {
    return build_token_stream(data, {.vocabulary_size = 300, .stream = options});
  }

  const std::filesystem::path path = test::fresh_directory("tokens") / "tokens.bin";
};

// The first token of every sequence of a pack, microbatch by microbatch.
std::vector<std::vector<std::int64_t>> first_tokens(const std::vector<TokenBatch>& pack) {
  std::vector<std::vector<std::int64_t>> result;
  for (const TokenBatch& batch : pack) {
    auto& row = result.emplace_back();
    for (std::int64_t i = 0; i < batch.input_ids.size(0); ++i)
      row.push_back(batch.input_ids[i][0].item<std::int64_t>());
  }
  return result;
}

TEST_F(TokenStream, Packs_the_microbatches_of_one_rank_and_step) {
  const auto stream = build(config(), {.rank = {.index = 1, .size = 2}});
  EXPECT_EQ(stream->total_steps(), 2);
  EXPECT_THAT(first_tokens(stream->next().value()), ElementsAre(ElementsAre(2, 6), ElementsAre(10, 14)));
  EXPECT_THAT(first_tokens(stream->next().value()), ElementsAre(ElementsAre(18, 22), ElementsAre(26, 30)));
  EXPECT_FALSE(stream->next().has_value());
}

TEST_F(TokenStream, Of_sequences_longer_than_the_positions_of_the_model_is_refused) {
  EXPECT_NO_THROW((void)build_token_stream(config(), {.vocabulary_size = 300, .max_positions = 2}));
  EXPECT_THAT(test::message_of<ConfigError>(
                  [&] { (void)build_token_stream(config(), {.vocabulary_size = 300, .max_positions = 1}); }),
              AllOf(HasSubstr("sequence_length = 2"), HasSubstr("max_position_ids = 1")));
}

// Ranks that share a sequence must get equal numbers of positions.
TEST_F(TokenStream, Pads_sequences_for_the_ranks_that_share_them) {
  TokensDataConfig data = config();
  data.source.end_of_document = 40;
  data.source.sequence.sequence_length = 40;
  const auto columns = [&](const ViewConfig& view, const DeviceMeshParameters& mesh) {
    data.source.sequence.view = view;
    data.loader = {.global_batch_size = 1, .microbatch_size = 1, .num_workers = 0};
    const auto stream = build_token_stream(data, {.vocabulary_size = 300, .mesh = mesh});
    const TokenBatch batch = stream->next().value().front();
    EXPECT_EQ(batch.lengths.empty() ? batch.input_ids.size(1) : batch.lengths.at(0), 40);
    return batch.input_ids.size(1);
  };
  EXPECT_EQ(columns(DocumentsViewConfig{}, {}), 40);
  EXPECT_EQ(columns(DocumentsViewConfig{}, {.context_parallel_shard = 3, .tensor_parallel = 2}), 42);
  EXPECT_EQ(columns(ConcatenatedViewConfig{}, {.context_parallel_replicate = 3}), 42);
  EXPECT_EQ(columns(PackedViewConfig{}, {.tensor_parallel = 4}), 40);
  EXPECT_EQ(columns(PackedViewConfig{}, {.tensor_parallel = 3}), 42);
  EXPECT_EQ(columns(PackedViewConfig{}, {.context_parallel_shard = 2}), 40);
  EXPECT_EQ(columns(PackedViewConfig{}, {.context_parallel_shard = 2, .tensor_parallel = 3}), 48);
}

TEST_F(TokenStream, Ends_with_a_shorter_pack_unless_the_rest_is_dropped) {
  TokensDataConfig keeping = config();
  keeping.loader.drop_last = false;
  const auto stream = build(keeping, {.rank = {.index = 0, .size = 2}});
  EXPECT_EQ(stream->total_steps(), 3);
  (void)stream->next();
  (void)stream->next();
  EXPECT_THAT(first_tokens(stream->next().value()), ElementsAre(ElementsAre(32, 36)));
}

TEST_F(TokenStream, Resumes_a_shuffled_stream_at_any_pack_on_another_number_of_ranks) {
  TokensDataConfig shuffled = config();
  shuffled.loader.shuffle = true;
  const StreamOptions one_rank{.seed = 4, .repeat = true};
  const auto stream = build(shuffled, one_rank);
  EXPECT_EQ(stream->total_steps(), std::nullopt);
  for (int step = 0; step < 5; ++step) {
    const nlohmann::json state = stream->state();
    const auto expected = first_tokens(stream->next().value());
    const auto again = build(shuffled, one_rank);
    again->load_state(state);
    EXPECT_EQ(first_tokens(again->next().value()), expected) << step;

    std::multiset<std::int64_t> of_both, of_one;
    for (const auto& row : expected) of_one.insert(row.begin(), row.end());
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      const auto half = build(shuffled, {.rank = {.index = rank, .size = 2}, .seed = 4, .repeat = true});
      half->load_state(state);
      for (const auto& row : first_tokens(half->next().value())) of_both.insert(row.begin(), row.end());
    }
    EXPECT_EQ(of_both, of_one) << step;
  }
}

TEST_F(TokenStream, Reads_text_as_bytes) {
  TextDataConfig text{.source = {.paths = {path.string()}, .sequence = {.sequence_length = 81}},
                      .loader = {.num_workers = 0}};
  const auto pack = build(text)->next().value();
  EXPECT_EQ(pack.at(0).input_ids[0][2].item<std::int64_t>(), 1);  // bytes 0 0 1 0 2 0 ...
}

TEST_F(TokenStream, Hands_out_tensors_that_are_pinned_only_where_there_is_a_gpu) {
  const auto pack = build(config())->next().value();
  for (const at::Tensor& leaf : tree_leaves(pack)) EXPECT_EQ(leaf.is_pinned(), at::hasCUDA());
}

template <class Call>
std::string config_error(Call call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no ConfigError";
}

TEST_F(TokenStream, Refuses_bytes_where_the_vocabulary_has_no_room) {
  const TextDataConfig text{.source = {.paths = {path.string()}, .sequence = {.sequence_length = 2}}};
  EXPECT_THAT(config_error([&] { (void)build_token_stream(text, {.vocabulary_size = 255}); }), HasSubstr("256"));
}

TEST_F(TokenStream, Refuses_a_hugging_face_dataset_by_name) {
  EXPECT_THAT(config_error([&] { (void)build(DatasetDataConfig{.dataset = "wikitext"}); }), HasSubstr("wikitext"));
}

TEST_F(TokenStream, Refuses_options_of_workers_without_workers) {
  TokensDataConfig without = config();
  without.loader.num_workers = 0;
  TokensDataConfig prefetching = without, persistent = without, waiting = without;
  prefetching.loader.prefetch_factor = 2;
  persistent.loader.persistent_workers = true;
  waiting.loader.timeout = 1.5;  // a timeout is allowed without workers too
  EXPECT_NO_THROW((void)build(without));
  EXPECT_NO_THROW((void)build(waiting));
  for (const auto& bad : {prefetching, persistent}) {
    EXPECT_THAT(config_error([&] { (void)build(bad); }), HasSubstr("num_workers"));
  }
}

TEST_F(TokenStream, Waits_five_minutes_for_data_unless_another_time_is_asked_for) {
  AutoDataConfig loader;
  EXPECT_EQ(loader_options(loader).timeout_seconds, 300);
  for (const double timeout : {1.5, 0.0}) {
    loader.timeout = timeout;
    EXPECT_EQ(loader_options(loader).timeout_seconds, timeout);
  }
}

// A sample is the id of the thread that read it.
struct ReaderOfSamples {
  std::int64_t size() const { return 4; }
  at::Tensor get(std::int64_t /*index*/) const {
    return at::scalar_tensor(static_cast<std::int64_t>(std::hash<std::thread::id>()(std::this_thread::get_id())),
                             at::kLong);
  }
};

TEST_F(TokenStream, Has_workers_that_outlive_a_pass) {
  const AutoDataConfig loader{
      .global_batch_size = 2, .microbatch_size = 2, .num_workers = 1, .persistent_workers = true};
  const auto first = [](std::span<const at::Tensor> samples) { return samples.front(); };
  auto stream =
      make_pack_stream<at::Tensor>(std::make_shared<const ReaderOfSamples>(), first, loader, {.repeat = true});
  std::set<std::int64_t> readers;
  for (int step = 0; step < 6; ++step) readers.insert(stream->next().value().front().item<std::int64_t>());  // 3 passes
  EXPECT_EQ(readers.size(), 1U);
}

}  // namespace
}  // namespace d9d::token_stream_test
