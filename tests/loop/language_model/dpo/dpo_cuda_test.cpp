// Trains on preferences on a GPU, with both references.
#include <gtest/gtest.h>

#include "tests/loop/language_model/dpo/dpo_job.h"
#include "tests/support/cuda_test.h"

namespace d9d::test::dpo_cuda_test {
namespace {

using dpo::DpoJob;

class DpoCuda : public CudaTest {};

void expect_as_on_a_cpu(DpoJob job) {
  const dpo::Trained expected = dpo::train(job);
  job.job.is_on_gpu = true;
  dpo::expect_same_job(dpo::train(job), expected);
}

TEST_F(DpoCuda, Of_a_copy_trains_as_on_a_cpu) { expect_as_on_a_cpu({}); }

TEST_F(DpoCuda, Of_a_copy_that_sleeps_trains_as_on_a_cpu) {
  expect_as_on_a_cpu({.job = {.evaluated = {1}, .sleeps = {SleepTag::kTensorStates, SleepTag::kComms}}});
}

TEST_F(DpoCuda, Without_adapters_trains_as_on_a_cpu) {
  expect_as_on_a_cpu({.job = {.adapters = LoraConfig{".*_proj", {.r = 2, .alpha = 4.0}}}});
}

}  // namespace
}  // namespace d9d::test::dpo_cuda_test
