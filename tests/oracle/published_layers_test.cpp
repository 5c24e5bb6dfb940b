// Compares one layer of Qwen3-0.6B, of Qwen3-30B-A3B (with 12 of its 128 experts) and of Llama 3.2 1B, in their
// published shapes, with Hugging Face transformers.
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/oracle/oracle_case.h"
#include "tests/support/compare.h"

namespace d9d::published_layers_test {
namespace {

TEST(PublishedLayers, Equal_transformers_in_output_loss_and_every_gradient) {
  const std::filesystem::path root = std::filesystem::path(::testing::TempDir()) / "d9d" / "published_layers";
  const int num_threads = at::get_num_threads();
  at::set_num_threads(static_cast<int>(std::thread::hardware_concurrency()));
  for (const test::OracleCase& oracle : test::write_published_layers(root)) {
    SCOPED_TRACE(oracle.folder_name());
    const test::LoadedModel loaded(oracle);
    const SafetensorsFile expected = oracle.expected();
    test::expect_close("output", loaded.output(), expected.tensor("output"), test::tolerance("fp32"));
    const at::Tensor loss = loaded.loss();
    test::expect_close("loss", loss, expected.tensor("loss"), test::tolerance("fp32"));
    loss.backward();
    test::expect_all_close(loaded.gradients(), test::with_prefix(expected, "grad."), test::tolerance("fp32"));
  }
  at::set_num_threads(num_threads);
  std::filesystem::remove_all(root);  // half a gigabyte
}

}  // namespace
}  // namespace d9d::published_layers_test
