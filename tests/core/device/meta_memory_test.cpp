#include "d9d/core/device/meta_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/device/meta_operators.h"

namespace d9d::meta_memory_test {
namespace {

at::Tensor floats(at::IntArrayRef sizes) { return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat)); }

TEST(MetaMemory, Counts_storages_while_they_live_and_views_once) {
  MetaMemory memory;
  at::Tensor x = floats({4, 8});
  EXPECT_EQ(memory.live_bytes(), 128);
  const at::Tensor view = x.narrow(0, 1, 2).t();
  EXPECT_EQ(memory.live_bytes(), 128);
  (void)(x + x);
  EXPECT_EQ(memory.live_bytes(), 128);
  EXPECT_EQ(memory.peak_bytes(), 256);
  memory.reset_peak();
  EXPECT_EQ(memory.peak_bytes(), 128);
  x = at::Tensor();
  EXPECT_EQ(memory.live_bytes(), 128);  // that of the view
}

TEST(MetaMemory, Leaves_out_what_was_there_before_and_outlives_nothing) {
  at::Tensor before = floats({16}), inside;
  {
    const MetaMemory memory;
    before = at::Tensor();
    inside = floats({2});
    EXPECT_EQ(memory.live_bytes(), 8);
  }
  const MetaMemory memory;
  inside = at::Tensor();
  EXPECT_EQ(memory.live_bytes(), 0);
}

TEST(MetaMemory, Refuses_a_second_scope) {
  const MetaMemory memory;
  EXPECT_THROW(MetaMemory{}, StateError);
}

// Each operator against the CPU's shapes and dtypes.
TEST(MetaOperators, Return_the_shapes_and_dtypes_of_the_cpu) {
  const MetaOperators operators;
  const at::Tensor x = at::ones({3, 1}), y = at::ones({4}, at::kDouble), mask = x.gt(0),
                   ids = at::zeros({5}, at::kLong);
  const auto on_meta = [](const at::Tensor& tensor) { return tensor.to(at::kMeta); };
  const auto expect_like = [](const at::Tensor& meta, const at::Tensor& cpu) {
    EXPECT_TRUE(meta.is_meta());
    EXPECT_EQ(meta.sizes(), cpu.sizes());
    EXPECT_EQ(meta.scalar_type(), cpu.scalar_type());
  };
  expect_like(at::where(on_meta(mask), on_meta(x), on_meta(y)), at::where(mask, x, y));
  expect_like(on_meta(x).index_select(0, on_meta(ids)), x.index_select(0, ids));
  expect_like(at::embedding_dense_backward(on_meta(at::ones({5, 2})), on_meta(ids), 7, -1, false),
              at::embedding_dense_backward(at::ones({5, 2}), ids, 7, -1, false));
  expect_like(at::searchsorted(on_meta(y), on_meta(y), /*out_int32=*/true), at::searchsorted(y, y, true));
  expect_like(on_meta(mask).logical_and(on_meta(mask)), mask.logical_and(mask));
  expect_like(on_meta(mask).logical_or(on_meta(mask)), mask.logical_or(mask));
  expect_like(on_meta(mask).logical_not(), mask.logical_not());
}

TEST(MetaOperators, End_with_their_scope) {
  const at::Tensor x = floats({2});
  { const MetaOperators operators; }
  EXPECT_ANY_THROW((void)at::where(x.gt(0), x, x));
}

}  // namespace
}  // namespace d9d::meta_memory_test
