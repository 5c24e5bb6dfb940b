// The record of the example of d9d 0.16 gives the same batches as the reference, for the same rows and tokenizer.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/config/record_json.h"
#include "d9d/data/build/token_stream.h"

#include "tests/data/cache_home.h"
#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::reference_example_test {
namespace {

std::vector<std::vector<std::int64_t>> rows_of(const at::Tensor& tensor) {
  std::vector<std::vector<std::int64_t>> rows;
  for (std::int64_t i = 0; i < tensor.size(0); ++i) {
    const at::Tensor row = tensor[i].contiguous();
    rows.emplace_back(row.const_data_ptr<std::int64_t>(), row.const_data_ptr<std::int64_t>() + row.numel());
  }
  return rows;
}

TEST(ReferenceExample, Has_the_batches_of_the_reference_on_one_and_two_ranks) {
  const auto folder = test::fresh_directory("example");
  std::filesystem::create_directories(folder / "data");
  const std::string printed = test::run_python("tests/data/reference_example_oracle.py", {folder.string()});
  const auto begin = printed.find("RESULT ");
  ASSERT_NE(begin, std::string::npos);
  const auto expected = nlohmann::json::parse(printed.substr(begin + 7));
  const test::CacheHome cache(folder / "home");
  const auto config = parse_record<DataConfig>({{"dataset", folder.string()},
                                                {"split", "train"},
                                                {"text_column", "body"},
                                                {"use_samples", expected.at("use_samples")},
                                                {"shuffle_seed", expected.at("seed")},
                                                {"tokenizer", (folder / "tokenizer.json").string()},
                                                {"num_proc", 2},
                                                {"presort_buffer_size", expected.at("buffer")},
                                                {"global_batch_size", expected.at("global_batch")},
                                                {"microbatch_size", expected.at("microbatch")},
                                                {"num_workers", 2}},
                                               {.keys = "data"});
  const auto vocabulary_size = expected.at("vocabulary").get<std::int64_t>();
  for (const std::int64_t size : {1, 2}) {
    for (std::int64_t rank = 0; rank < size; ++rank) {
      const auto stream = build_token_stream(
          config, {.vocabulary_size = vocabulary_size, .max_positions = 128000, .stream = {.rank = {rank, size}}});
      const auto& microbatches = expected.at("ranks").at(std::to_string(size)).at(rank);
      std::size_t next = 0;
      while (auto pack = stream->next()) {
        for (const TokenBatch& batch : *pack) {
          const auto& one = microbatches.at(next++);
          if (one.at("input_ids").at(0).empty()) {  // documents of less than two tokens become one position of padding
            EXPECT_TRUE(at::equal(batch.labels, at::full({batch.labels.size(0), 1}, kIgnoreIndex, at::kLong)));
            continue;
          }
          EXPECT_EQ(nlohmann::json(rows_of(batch.input_ids)), one.at("input_ids")) << next;
          EXPECT_EQ(nlohmann::json(rows_of(batch.labels)), one.at("labels")) << next;
          EXPECT_EQ(nlohmann::json(rows_of(batch.position_ids)), one.at("position_ids")) << next;
        }
      }
      EXPECT_EQ(next, microbatches.size());
    }
  }
}

}  // namespace
}  // namespace d9d::reference_example_test
