#include <gtest/gtest.h>

#include "d9d/core/device/cuda_library.h"
#include "d9d/kernels/attention/cudnn_graph.h"

#include "tests/kernels/cuda_testing.h"

namespace d9d::kernels::detail::cudnn_graph_cuda_test {
namespace {

CudnnGraph load_graph() { return reinterpret_cast<GetCudnnGraph>(cudnn_library_symbol("d9d_cudnn_graph"))(); }

CudnnPlanKey key_of(std::int64_t num_positions) {
  constexpr std::int64_t kHeads = 4, kKeyHeads = 2, kFeatures = 64;
  const auto strides = [&](std::int64_t num_heads) {
    return CudnnStrides{
        .sequence = num_positions * num_heads * kFeatures, .head = kFeatures, .position = num_heads * kFeatures};
  };
  return {.num_sequences = 2,
          .num_queries = num_positions,
          .num_keys = num_positions,
          .num_heads = kHeads,
          .num_kv_heads = kKeyHeads,
          .num_features = kFeatures,
          .query = strides(kHeads),
          .key = strides(kKeyHeads),
          .value = strides(kKeyHeads),
          .out = strides(kHeads),
          .grad_value = strides(kKeyHeads),
          .scale = 0.125F,
          .right = 0};
}

class CudnnGraphCuda : public ::d9d::testing::CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(load_graph().plan(key_of(64))->error, "");
  }
};

TEST_F(CudnnGraphCuda, Makes_plans_of_both_directions_beside_each_other) {
  const CudnnGraph graph = load_graph();
  for (const std::int64_t num_positions : {100, 200, 300}) {
    CudnnPlanKey forward = key_of(num_positions), backward = forward;
    backward.is_backward = true;
    graph.prepare(backward);
    graph.prepare(backward);
    EXPECT_EQ(graph.plan(forward)->error, "") << num_positions;
    EXPECT_EQ(graph.plan(backward)->error, "") << num_positions;
    EXPECT_GT(graph.plan(backward)->workspace_bytes, 0) << num_positions;
  }
}

TEST_F(CudnnGraphCuda, Keeps_the_error_of_a_plan_that_cannot_be_made) {
  const CudnnGraph graph = load_graph();
  CudnnPlanKey impossible = key_of(128);
  impossible.num_features = 7;
  graph.prepare(impossible);
  EXPECT_NE(graph.plan(impossible)->error, "");
}

// The process ends while the plan is being made, if making it takes longer than the test.
TEST_F(CudnnGraphCuda, May_be_making_a_plan_when_the_process_ends) {
  CudnnPlanKey key = key_of(1000);
  key.is_backward = true;
  load_graph().prepare(key);
}

}  // namespace
}  // namespace d9d::kernels::detail::cudnn_graph_cuda_test
