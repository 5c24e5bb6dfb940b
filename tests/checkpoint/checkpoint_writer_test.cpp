#include "d9d/checkpoint/checkpoint_writer.h"

#include <fstream>
#include <functional>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::test::checkpoint_writer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DTensor rows(const DeviceMesh& mesh, double first) {
  const std::int64_t index = mesh.index();
  return {.local = at::arange(12, at::kDouble).view({3, 4}).add(first + 100 * static_cast<double>(index)),
          .mesh = mesh,
          .placements = {Shard{0}},
          .global_shape = {3 * mesh.num_ranks(), 4}};
}

CheckpointState state_of(const DeviceMesh& mesh, double first) {
  CheckpointState state;
  state.tensors.emplace("weight", rows(mesh, first));
  state.tensors.emplace("count", whole_dtensor(at::full({}, static_cast<std::int64_t>(first))));
  state.values = {{"position", first}};
  state.rank_values = [index = mesh.index()] { return nlohmann::json{{"seen", 10 * index}}; };
  return state;
}

// What a step's totals would say.
SaveProgress sum_over_ranks(const CheckpointWriter& writer, const DeviceMesh& mesh) {
  const SaveProgress own = writer.progress();
  SaveProgress sum;
  for (const nlohmann::json& each : all_gather_object({own.num_working, own.num_failed}, mesh)) {
    sum.num_working += each.at(0).get<std::int64_t>();
    sum.num_failed += each.at(1).get<std::int64_t>();
  }
  return sum;
}

// Steps without work until the save has ended.
EndedSave step_until_it_has_ended(CheckpointWriter& writer, const DeviceMesh& mesh) {
  while (true) {
    if (const auto ended = writer.advance(sum_over_ranks(writer, mesh))) return *ended;
  }
}

class CheckpointWriterTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void on_ranks(std::int64_t num_ranks, const std::function<void(const DeviceMesh&)>& body) const {
    run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
      const DeviceMesh mesh("job", {{"a", num_ranks}}, borrowed(world));
      (void)CheckpointDirectory(folder_, mesh).prepare();
      body(mesh);
    });
  }
  CheckpointWriter writer(const DeviceMesh& mesh, std::int64_t ranks_of_host = 1) const {
    return {CheckpointDirectory(folder_, mesh), at::kCPU, ranks_of_host};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
  void expect_newest(const DeviceMesh& mesh, std::int64_t step, double first) const {
    const auto saved = CheckpointDirectory(folder_, mesh).newest();
    ASSERT_TRUE(saved.has_value());
    EXPECT_EQ(saved->step(), step);
    const CheckpointState state = state_of(mesh, -1), expected = state_of(mesh, first);
    saved->load(state, mesh);
    for (const auto& [name, tensor] : expected.tensors) {
      EXPECT_TRUE(at::equal(state.tensors.at(name).local, tensor.local)) << name;
    }
    EXPECT_EQ(saved->values(), expected.values);
    for (std::size_t rank = 0; rank < saved->rank_values().size(); ++rank) {
      EXPECT_EQ(saved->rank_values()[rank].at("seen"), 10 * rank);
    }
  }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) / cat("d9d_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(CheckpointWriterTest, Saves_the_values_at_the_call_whatever_happens_to_them_afterwards) {
  for (const std::int64_t num_ranks : {1, 3}) {
    fs::remove_all(folder_);
    on_ranks(num_ranks, [&](const DeviceMesh& mesh) {
      CheckpointWriter saves = writer(mesh);
      for (const std::int64_t step : {10, 20}) {
        const auto first = static_cast<double>(step);
        const CheckpointState state = state_of(mesh, first);
        saves.begin(step, state, {.num_to_keep = 2});
        saves.wait_for_copies();
        for (const auto& [name, tensor] : state.tensors) tensor.local.fill_(-5);
        const EndedSave ended = step_until_it_has_ended(saves, mesh);
        EXPECT_EQ(ended.step, step);
        EXPECT_EQ(ended.error, "");
        expect_newest(mesh, step, first);
      }
    });
    EXPECT_THAT(names(), ElementsAre("save-10", "save-20"));
  }
}

TEST_F(CheckpointWriterTest, Ends_at_finish_which_waits) {
  on_ranks(3, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh);
    EXPECT_FALSE(saves.finish().has_value());
    for (const std::int64_t step : {1, 2, 3}) {
      saves.begin(step, state_of(mesh, static_cast<double>(step)), {.num_to_keep = 1});
      EXPECT_TRUE(saves.is_saving());
      EXPECT_EQ(saves.finish().value().step, step);
      EXPECT_FALSE(saves.is_saving());
      expect_newest(mesh, step, static_cast<double>(step));
    }
  });
  EXPECT_THAT(names(), ElementsAre("save-3"));
}

TEST_F(CheckpointWriterTest, Writes_at_once_where_memory_is_short) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh, /*ranks_of_host=*/mesh.index() == 0 ? 1 : std::int64_t{1} << 50);
    EXPECT_FALSE(saves.writes_at_once().has_value());
    const CheckpointState state = state_of(mesh, 4);
    saves.begin(4, state, {});
    EXPECT_EQ(saves.writes_at_once(), true);
    EXPECT_EQ(saves.progress().num_working, 0);
    for (const auto& [name, tensor] : state.tensors) tensor.local.fill_(-5);
    EXPECT_EQ(saves.finish().value().error, "");
    expect_newest(mesh, 4, 4);
  });
}

TEST_F(CheckpointWriterTest, Of_a_rank_that_cannot_write_says_so_on_all_ranks_and_can_save_again) {
  on_ranks(3, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh);
    saves.begin(1, state_of(mesh, 1), {});
    EXPECT_EQ(saves.finish().value().error, "");
    CheckpointState state = state_of(mesh, 2);
    if (mesh.index() == 2) state.rank_values = []() -> nlohmann::json { throw IoError("the disk is full"); };
    for (const bool waits : {false, true}) {
      saves.begin(2, state, {});
      const EndedSave ended = waits ? saves.finish().value() : step_until_it_has_ended(saves, mesh);
      EXPECT_EQ(ended.error, "the disk is full (rank 2)");
      mesh.communicator()->barrier();
      EXPECT_THAT(names(), ElementsAre("save-1"));
      expect_newest(mesh, 1, 1);
    }
    saves.begin(3, state_of(mesh, 3), {});
    EXPECT_EQ(saves.finish().value().error, "");
    expect_newest(mesh, 3, 3);
  });
}

TEST_F(CheckpointWriterTest, Is_refused_for_unequal_ranks_and_has_failed_for_any_other_error) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh);
    CheckpointState state = state_of(mesh, 1);
    if (mesh.index() == 1) state.rank_values = []() -> nlohmann::json { throw ConfigError("a metric's mistake"); };
    saves.begin(1, state, {});
    const EndedSave failed = saves.finish().value();
    EXPECT_EQ(failed.error, "a metric's mistake (rank 1)");
    EXPECT_FALSE(failed.is_refused);
    CheckpointState unequal = state_of(mesh, 2);
    unequal.tensors.at("count").local.add_(mesh.index());
    saves.begin(2, unequal, {});
    const EndedSave refused = saves.finish().value();
    EXPECT_THAT(refused.error, HasSubstr("expected equal values of count on all ranks"));
    EXPECT_TRUE(refused.is_refused);
  });
}

TEST_F(CheckpointWriterTest, Of_a_manifest_that_cannot_be_written_says_so_on_all_ranks) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh);
    saves.begin(1, state_of(mesh, 1), {});
    while (sum_over_ranks(saves, mesh).num_working > 0) continue;
    mesh.communicator()->barrier();
    if (mesh.index() == 0) fs::create_directory(folder_ / "save-1.tmp" / "manifest.json");
    mesh.communicator()->barrier();
    EXPECT_THAT(step_until_it_has_ended(saves, mesh).error, AllOf(HasSubstr("manifest.json"), HasSubstr("(rank 0)")));
    mesh.communicator()->barrier();
    EXPECT_THAT(names(), ::testing::IsEmpty());
  });
}

TEST_F(CheckpointWriterTest, Of_a_file_that_is_gone_says_so_and_the_one_before_stays) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh);
    saves.begin(1, state_of(mesh, 1), {.num_to_keep = 1});
    EXPECT_EQ(saves.finish().value().error, "");
    saves.begin(2, state_of(mesh, 2), {.num_to_keep = 1});
    while (sum_over_ranks(saves, mesh).num_working > 0) continue;
    mesh.communicator()->barrier();
    if (mesh.index() == 0) fs::remove(folder_ / "save-2.tmp" / "rank-1.safetensors");
    mesh.communicator()->barrier();
    EXPECT_THAT(saves.finish().value().error, AllOf(HasSubstr("rank-1.safetensors of rank 1"), HasSubstr("(rank 0)")));
    mesh.communicator()->barrier();
    expect_newest(mesh, 1, 1);
  });
  EXPECT_THAT(names(), ElementsAre("save-1"));
}

TEST_F(CheckpointWriterTest, That_is_dropped_in_a_save_completes_it) {
  on_ranks(3, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh);
    saves.begin(7, state_of(mesh, 7), {});
  });
  on_ranks(3, [&](const DeviceMesh& mesh) { expect_newest(mesh, 7, 7); });
}

TEST_F(CheckpointWriterTest, Takes_nothing_of_a_job_that_was_killed_in_the_same_step) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    const CheckpointDirectory directory(folder_, mesh);
    const fs::path staging = directory.make_staging(5);
    const CheckpointState state = state_of(mesh, 1);
    const JobTensors all = job_tensors(state.tensors, mesh);
    if (mesh.index() == 1) {
      write_rank_file(staging, 1, RankFilePlan(state.tensors, all, mesh), host_values_in(state.tensors), nullptr,
                      /*shared=*/nlohmann::json::array());
      std::ofstream(staging / ".nfs0001") << "of the file system";
    }
    mesh.communicator()->barrier();
    (void)directory.prepare();
    EXPECT_FALSE(fs::exists(staging / "rank-1.cbor"));
    mesh.communicator()->barrier();
    CheckpointWriter saves = writer(mesh);
    saves.begin(5, state_of(mesh, 2), {});
    EXPECT_EQ(saves.finish().value().error, "");
    expect_newest(mesh, 5, 2);
  });
}

TEST_F(CheckpointWriterTest, Says_which_older_checkpoints_stay) {
  fs::create_directories(folder_);
  fs::permissions(folder_, fs::perms::all);
  run_unprivileged([&] {
    on_ranks(1, [&](const DeviceMesh& mesh) {
      CheckpointWriter saves = writer(mesh);
      saves.begin(1, state_of(mesh, 1), {.num_to_keep = 1});
      EXPECT_EQ(saves.finish().value().not_removed, "");
      fs::permissions(folder_ / "save-1", fs::perms::owner_read | fs::perms::owner_exec);
      saves.begin(2, state_of(mesh, 2), {.num_to_keep = 1});
      const EndedSave ended = step_until_it_has_ended(saves, mesh);
      EXPECT_EQ(ended.error, "");
      EXPECT_THAT(ended.not_removed, HasSubstr("save-1 (Permission denied)"));
      expect_newest(mesh, 2, 2);
      EXPECT_NO_THROW((void)CheckpointDirectory(folder_, mesh).prepare());  // of the next job
      EXPECT_THAT(names(), ElementsAre("save-1.gone", "save-2"));
      fs::permissions(folder_ / "save-1.gone", fs::perms::owner_all);
      (void)CheckpointDirectory(folder_, mesh).prepare();
      EXPECT_THAT(names(), ElementsAre("save-2"));
    });
  });
}

TEST_F(CheckpointWriterTest, Plans_anew_when_tensors_change) {
  on_ranks(2, [&](const DeviceMesh& mesh) {
    CheckpointWriter saves = writer(mesh);
    saves.prepare(state_of(mesh, 0).tensors);
    CheckpointState state = state_of(mesh, 1);
    state.tensors.emplace("more", rows(mesh, 7));
    saves.begin(1, state, {});
    EXPECT_EQ(saves.finish().value().error, "");
    const auto saved = CheckpointDirectory(folder_, mesh).newest();
    for (const auto& [name, tensor] : state.tensors) tensor.local.fill_(0);
    saved->load(state, mesh);
    EXPECT_TRUE(at::equal(state.tensors.at("more").local, rows(mesh, 7).local));
  });
}

}  // namespace
}  // namespace d9d::test::checkpoint_writer_test
