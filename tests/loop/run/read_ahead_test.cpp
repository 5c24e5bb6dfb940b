// trainer.data_prefetch.
#include <filesystem>

#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/measured_series.h"

namespace d9d::read_ahead_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using toy::Job;
using toy::samples;

TEST(ReadAhead, Changes_nothing) {
  std::vector<nlohmann::json> expected;
  for (const std::int64_t factor : {0, 1, 2, 3}) {
    Job job({{samples(0, 1), samples(1, 3)}, {samples(2, 1)}, {samples(5, 2)}, {samples(7, 1), samples(8, 1)}});
    job.config.data_prefetch.prefetch_factor = factor;
    job.train();
    auto steps = Job::logged();
    for (nlohmann::json& step : steps) test::drop_measured(step);
    if (expected.empty()) expected = steps;
    EXPECT_EQ(steps, expected) << factor;
    std::filesystem::remove(Job::metrics_file());
  }
  EXPECT_EQ(expected.size(), 4U);
}

TEST(ReadAhead, Ends_the_job_at_the_step_whose_data_has_an_error_with_its_text) {
  struct Failing : toy::Provider::Stream {
    std::optional<std::vector<toy::Batch>> next() {
      D9D_CHECK(position < 2, IoError, "[data] row 7 of 'a.jsonl' is bad.");
      return toy::Provider::Stream::next();
    }
  };
  struct Provider : toy::Provider {
    std::unique_ptr<PackStream<toy::Batch>> build_pack_stream(const DistContext&,
                                                              std::optional<std::int64_t>) override {
      return as_pack_stream<toy::Batch>(Failing{{.packs = packs, .known_total = {}}});
    }
  };
  for (const std::int64_t factor : {0, 3}) {
    Job job(std::vector<std::vector<toy::Batch>>(4, {samples(0, 1)}));
    job.config.data_prefetch.prefetch_factor = factor;
    Provider data;
    data.packs = job.provider.packs;
    Trainer<toy::Types> trainer(job.context, job.config,
                                {.task = job.task,
                                 .model = job.provider,
                                 .data = data,
                                 .optimizer = *job.optimizer,
                                 .lr_scheduler = job.lr_scheduler});
    EXPECT_THAT([&] { trainer.train(); }, ThrowsMessage<IoError>(HasSubstr("row 7 of 'a.jsonl' is bad")));
    EXPECT_EQ(trainer.schedule().current_step(), 2);
  }
}

}  // namespace
}  // namespace d9d::read_ahead_test
