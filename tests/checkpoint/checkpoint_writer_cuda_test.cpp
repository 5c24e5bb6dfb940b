// Saves of tensors on a GPU, which the device goes on to change.
#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/checkpoint/checkpoint_writer.h"

#include "tests/support/gpu_test.h"
#include "tests/support/ranks.h"

namespace d9d::test::checkpoint_writer_cuda_test {
namespace {

namespace fs = std::filesystem;

class CheckpointWriterCuda : public GpuTest {
 protected:
  void TearDown() override { fs::remove_all(folder_); }
  const fs::path folder_ = fs::path(::testing::TempDir()) / "d9d_checkpoint_writer_cuda";
};

TEST_F(CheckpointWriterCuda, Saves_the_values_at_the_call_while_the_device_changes_them) {
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  const CheckpointDirectory directory(folder_, alone);
  (void)directory.prepare();
  CheckpointState state;
  // 256 MiB, of which the copy takes far longer than the kernels that follow it; a transposed view; and a buffer.
  state.tensors.emplace("weight", whole_dtensor(at::zeros({64 << 20}, at::kCUDA)));
  state.tensors.emplace("columns", whole_dtensor(at::zeros({2048, 1024}, at::kCUDA).t()));
  state.tensors.emplace("buffer", whole_dtensor(at::zeros({16 << 20}, at::kCUDA)));
  state.tensors.emplace("step", whole_dtensor(at::zeros({}, at::kLong)));
  state.buffers = {"buffer"};
  CheckpointWriter writer(directory, at::Device(at::kCUDA, 0), /*ranks_of_host=*/1);
  writer.prepare(state.tensors);
  for (std::int64_t save = 1; save <= 5; ++save) {
    for (const auto& [name, tensor] : state.tensors) tensor.local.fill_(save);
    writer.begin(save, state, {.num_to_keep = 1});
    EXPECT_EQ(writer.writes_at_once(), false);
    state.tensors.at("buffer").local.fill_(-1);  // before the copies are waited for, as a forward may
    writer.wait_for_copies();
    for (const auto& [name, tensor] : state.tensors) tensor.local.fill_(-1);
    EXPECT_EQ(writer.finish().value().error, "");
    CheckpointState loaded;
    for (const auto& [name, tensor] : state.tensors)
      loaded.tensors.emplace(name, whole_dtensor(at::empty_like(tensor.local)));
    directory.newest()->load(loaded, alone);
    for (const auto& [name, tensor] : loaded.tensors) {
      EXPECT_TRUE(tensor.local.eq(save).all().item<bool>()) << name << " of save " << save;
    }
  }
}

}  // namespace
}  // namespace d9d::test::checkpoint_writer_cuda_test
