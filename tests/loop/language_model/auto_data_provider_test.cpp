#include "d9d/loop/language_model/auto_data_provider.h"

#include <fstream>
#include <mutex>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/core/communicator/thread/thread_job.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::auto_data_provider_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Numbers {
  std::int64_t size() const { return 10; }
  std::int64_t get(std::int64_t index) const { return 100 + index; }
};

at::Tensor collate(std::span<const std::int64_t> samples) { return at::tensor(at::IntArrayRef(samples), at::kLong); }

// All values in the first packs of a stream.
std::vector<std::int64_t> values_of(PackStream<at::Tensor>& stream, int num_packs) {
  std::vector<std::int64_t> values;
  for (int i = 0; i < num_packs; ++i) {
    const auto pack = stream.next().value();
    for (const at::Tensor& batch : pack) {
      for (std::int64_t j = 0; j < batch.size(0); ++j) values.push_back(batch[j].item<std::int64_t>());
    }
  }
  return values;
}

TEST(AutoDataProvider, Streams_a_dataset_of_ones_own_as_the_record_says) {
  const DistContext context({.world = one_rank_world()});
  const AutoDataConfig config{.global_batch_size = 4, .microbatch_size = 2, .shuffle = true};
  AutoDataProvider<at::Tensor> data([](const DistContext&) { return std::make_shared<const Numbers>(); }, collate,
                                    config, /*base_seed=*/7);
  for (const bool repeat : {false, true}) {
    const auto stream = data.build_pack_stream(context, repeat ? std::optional<std::int64_t>(5) : std::nullopt);
    const auto expected = make_pack_stream<at::Tensor>(context, std::make_shared<const Numbers>(), collate, config,
                                                       {.seed = 7, .repeat = repeat});
    EXPECT_EQ(stream->total_steps(), expected->total_steps());
    const int num_packs = repeat ? 5 : 2;  // ten samples are two packs and a remainder
    EXPECT_EQ(values_of(*stream, num_packs), values_of(*expected, num_packs));
    EXPECT_EQ(stream->next().has_value(), repeat);
  }
}

TEST(AutoDataProvider, Says_what_all_ranks_find_alike_once) {
  const std::filesystem::path path = test::fresh_directory("found_alike") / "tokens.bin";
  constexpr char kEnd = 9;
  std::ofstream(path, std::ios::binary) << std::string{1, 2, kEnd, kEnd, 3, 4, kEnd};  // the second document is empty
  const TokensDataConfig config{.source = {.path = path,
                                           .dtype = TokenDtype::kUint8,
                                           .end_of_document = kEnd,
                                           .sequence = {.sequence_length = 4, .view = DocumentsViewConfig{}}},
                                .loader = {.global_batch_size = 2, .microbatch_size = 1}};
  std::vector<std::string> lines;
  std::mutex mutex;
  test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
    const DistContext context({.mesh = {.data_parallel_replicate = 2},
                               .world = test::borrowed(world),
                               .local_rank = world.rank(),
                               .log_sink = [&](std::string_view line) {
                                 const std::lock_guard lock(mutex);
                                 lines.emplace_back(line);
                               }});
    (void)token_data_provider(config, {.vocabulary_size = 10, .max_positions = 4}, /*base_seed=*/1)
        .build_pack_stream(context, std::nullopt);
  });
  EXPECT_THAT(lines,
              ElementsAre(HasSubstr("data: left out 1 of 3 documents"), HasSubstr("data: packs of 1 microbatch, "),
                          HasSubstr("data:   loader: "), HasSubstr("data:     order: 2 samples"),
                          HasSubstr("data:       2 sequences"), HasSubstr("data:         2 documents of at most"),
                          HasSubstr("data:           3 documents of '")));
}

}  // namespace
}  // namespace d9d::auto_data_provider_test
