#include "d9d/checkpoint/rank_file.h"

#include <array>
#include <fstream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/base/rounding.h"
#include "d9d/checkpoint/checkpoint_directory.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::test::rank_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kNumUnits = 3;
// Of the float32 tensors of a unit: 2 KB to 4 MB.
constexpr std::array<std::int64_t, 6> kNumels = {512, 70'000, 12'345, 262'144, 1'000'003, 1'000};

// The tensors as FSDP lays them out: a rank keeps a slice of each unit, which begins and ends within tensors.
CheckpointState sharded_state(const DeviceMesh& mesh, double first) {
  constexpr std::int64_t kAlignment = 128;
  std::int64_t numel_of_unit = 0;
  for (const std::int64_t numel : kNumels) numel_of_unit += round_up(numel, kAlignment);
  const std::int64_t padded = round_up(numel_of_unit, kAlignment * mesh.num_ranks());
  CheckpointState state;
  for (std::int64_t unit = 0; unit < kNumUnits; ++unit) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < kNumels.size(); ++i) {
      const Placements placements = {FlatShard{.padded_numel = padded, .offset_in_unit = offset}};
      const FlatRange range = flat_range(kNumels[i], mesh, placements);
      offset += round_up(kNumels[i], kAlignment);
      const at::Tensor local = at::arange(range.begin, range.end, at::kFloat) + first;
      state.tensors.emplace(
          cat(unit, ".", i),
          DTensor{.local = local, .mesh = mesh, .placements = placements, .global_shape = {kNumels[i]}});
    }
  }
  return state;
}

void on_ranks(std::int64_t num_ranks, const std::function<void(const DeviceMesh&)>& body) {
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    body(DeviceMesh("job", {{"a", num_ranks}}, borrowed(world)));
  });
}

TEST(RankFile, Gives_each_rank_its_share_of_small_tensors_and_five_percent_more_at_most) {
  const fs::path folder = fresh_directory("d");
  for (const auto& [num_saved, num_loaded] : {std::pair{4, 8}, {1, 8}, {8, 6}, {6, 4}}) {
    on_ranks(num_saved,
             [&](const DeviceMesh& mesh) { CheckpointDirectory(folder, mesh).save(1, sharded_state(mesh, 5), {}); });
    on_ranks(num_loaded, [&](const DeviceMesh& mesh) {
      const CheckpointState state = sharded_state(mesh, -1), expected = sharded_state(mesh, 5);
      const BytesRead bytes = CheckpointDirectory(folder, mesh).newest()->load(state, mesh);
      std::int64_t share = 0;
      for (const auto& [name, tensor] : expected.tensors) {
        share += static_cast<std::int64_t>(tensor.local.nbytes());
        EXPECT_TRUE(at::equal(state.tensors.at(name).local, tensor.local)) << name;
      }
      EXPECT_EQ(bytes.wanted, share);
      EXPECT_LE(bytes.read, share + share / 20) << num_saved << " ranks saved, " << num_loaded << " load";
    });
  }
}

TEST(RankFile, Names_checksums_that_are_gone_cut_or_changed) {
  const fs::path folder = fresh_directory("d"), path = folder / "save-1/rank-0.checksums";
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  const CheckpointState state = sharded_state(alone, 5);
  const CheckpointDirectory directory(folder, alone);
  directory.save(1, state, {});
  const auto complaint = [&]() -> std::string {
    try {
      directory.newest()->load(state, alone);
    } catch (const IoError& error) {
      return error.what();
    }
    return "";
  };
  const std::string whole = text_of_file(path);
  for (std::size_t i = 0; i < whole.size(); i += whole.size() / 7) {
    std::string changed = whole;
    changed[i] ^= 1;
    for (const std::string& text : {changed, whole.substr(0, i)}) {
      std::ofstream(path, std::ios::binary) << text;
      EXPECT_THAT(complaint(), AllOf(HasSubstr("expected the checksums of "), HasSubstr(path.string()),
                                     HasSubstr("a job continues from the checkpoint before")));
    }
  }
  fs::remove(path);
  EXPECT_THAT(complaint(), AllOf(HasSubstr(path.string()), HasSubstr("does not exist"),
                                 Not(HasSubstr("Check the path")), HasSubstr("the one before")));
}

}  // namespace
}  // namespace d9d::test::rank_file_test
