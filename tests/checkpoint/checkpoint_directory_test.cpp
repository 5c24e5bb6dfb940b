#include "d9d/checkpoint/checkpoint_directory.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/dtensor/redistribute.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::test::checkpoint_directory_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::ThrowsMessage;

// How a job lays out the tensors "matrix" [10, 7], "vector" [13] and "count" [].
struct Layout {
  std::vector<MeshAxis> axes;
  Placements matrix;
  Placements vector;
  [[nodiscard]] std::int64_t num_ranks() const {
    std::int64_t product = 1;
    for (const MeshAxis& axis : axes) product *= axis.size;
    return product;
  }
};

const FlatShard kFlat{.padded_numel = 256, .offset_in_unit = 0};

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all = {
      {{{"a", 1}}, {Replicate{}}, {Replicate{}}},
      {{{"a", 2}}, {Shard{0}}, {Replicate{}}},
      {{{"a", 3}}, {Shard{1}}, {Shard{0}}},
      {{{"a", 2}, {"b", 2}}, {Shard{1}, Shard{0}}, {Replicate{}, Shard{0}}},
      {{{"a", 2}, {"b", 3}}, {Replicate{}, Shard{0}}, {Shard{0}, Replicate{}}},
      {{{"a", 4}}, {kFlat}, {FlatShard{.padded_numel = 256, .offset_in_unit = 128}}},
      {{{"a", 2}, {"b", 2}}, {Shard{1}, kFlat}, {Replicate{}, FlatShard{.padded_numel = 256, .offset_in_unit = 128}}},
      {{{"a", 8}}, {Shard{0}}, {Shard{0}}},  // the last ranks hold nothing
  };
  return all;
}

at::Tensor numbers(at::IntArrayRef shape, double first) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).add(first).view(shape);
}

// This rank's part of `whole`.
DTensor part_of(const at::Tensor& whole, const DeviceMesh& mesh, const Placements& placements) {
  const LocalBox box = local_box(whole.sizes().vec(), mesh, placements);
  at::Tensor part = whole;
  for (std::size_t d = 0; d < box.start.size(); ++d) {
    part = part.narrow(static_cast<std::int64_t>(d), box.start[d], box.sizes[d]);
  }
  if (has_flat_shard(placements)) {
    const FlatRange range = flat_range(box.numel(), mesh, placements);
    part = part.reshape({-1}).narrow(0, range.begin, range.numel());
  }
  return {
      .local = part.contiguous().clone(), .mesh = mesh, .placements = placements, .global_shape = whole.sizes().vec()};
}

CheckpointState state_on(const DeviceMesh& mesh, const Layout& layout, double first) {
  CheckpointState state;
  state.tensors.emplace("matrix", part_of(numbers({10, 7}, first), mesh, layout.matrix));
  state.tensors.emplace("vector", part_of(numbers({13}, first + 100).to(at::kBFloat16), mesh, layout.vector));
  state.tensors.emplace(
      "count",
      DTensor{
          .local = at::full({}, static_cast<std::int64_t>(first)), .mesh = {}, .placements = {}, .global_shape = {}});
  state.values = {{"position", first}};
  return state;
}

void on_ranks(const Layout& layout, const std::function<void(const DeviceMesh&)>& body) {
  run_ranks(RankBackend::kThreads, layout.num_ranks(),
            [&](World& world) { body(DeviceMesh("job", layout.axes, borrowed(world))); });
}

class CheckpointDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  void save(const Layout& layout, std::int64_t step, double first, std::optional<std::int64_t> keep = std::nullopt) {
    on_ranks(layout, [&](const DeviceMesh& mesh) {
      CheckpointDirectory(folder_, mesh).save(step, state_on(mesh, layout, first), {.num_to_keep = keep});
    });
  }
  // Loads the newest one, and expects the numbers from `first` on.
  void expect_loads(const Layout& layout, double first) {
    on_ranks(layout, [&](const DeviceMesh& mesh) {
      const CheckpointState expected = state_on(mesh, layout, first);
      const CheckpointState state = state_on(mesh, layout, -7);
      const auto saved = CheckpointDirectory(folder_, mesh).newest();
      ASSERT_TRUE(saved.has_value());
      EXPECT_EQ(saved->values(), expected.values);
      saved->load(state, mesh);
      for (const auto& [name, tensor] : expected.tensors) {
        EXPECT_TRUE(at::equal(state.tensors.at(name).local, tensor.local)) << name;
      }
    });
  }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename().string());
    std::ranges::sort(found);
    return found;
  }
  // What newest() and load() throw on one rank.
  std::string complaint(const CheckpointState& state) {
    const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
    try {
      const auto saved = CheckpointDirectory(folder_, alone).newest();
      if (!saved) return "none";
      saved->load(state, alone);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
  CheckpointState state_alone(double first = -7) {
    return state_on(DeviceMesh("job", {{"a", 1}}, lone_rank(0, 1)), layouts().front(), first);
  }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) / cat("d9d_", ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(CheckpointDirectoryTest, Of_any_layout_loads_into_any_other_bit_for_bit) {
  double first = 0;
  for (const Layout& from : layouts()) {
    first += 1;
    save(from, static_cast<std::int64_t>(first), first);
    for (const Layout& to : layouts()) expect_loads(to, first);
  }
}

TEST_F(CheckpointDirectoryTest, Holds_every_element_once) {
  const std::uintmax_t bytes = 70 * 8 + 13 * 2 + 8;
  for (const Layout& layout : layouts()) {
    fs::remove_all(folder_);
    save(layout, 1, 5);
    std::uintmax_t written = 0, largest = 0;
    for (const auto& entry : fs::directory_iterator(folder_ / "save-1")) {
      if (entry.path().extension() != ".safetensors") continue;
      std::ifstream file(entry.path(), std::ios::binary);
      std::uint64_t header = 0;
      file.read(reinterpret_cast<char*>(&header), sizeof header);
      written += entry.file_size() - sizeof header - header;
      largest = std::max(largest, entry.file_size() - sizeof header - header);
    }
    EXPECT_EQ(written, bytes) << layout.num_ranks() << " ranks";
  }
}

TEST_F(CheckpointDirectoryTest, Ignores_and_removes_what_is_not_complete) {
  save(layouts()[1], 4, 4);
  fs::copy(folder_ / "save-4", folder_ / "save-9.tmp", fs::copy_options::recursive);
  fs::copy(folder_ / "save-4", folder_ / "save-8.gone", fs::copy_options::recursive);
  fs::create_directory(folder_ / "save-x");
  expect_loads(layouts()[2], 4);
  on_ranks(layouts()[1], [&](const DeviceMesh& mesh) { (void)CheckpointDirectory(folder_, mesh).prepare(); });
  EXPECT_THAT(names(), ElementsAre("save-4", "save-x"));
  save(layouts()[1], 5, 5);
  expect_loads(layouts()[0], 5);
}

TEST_F(CheckpointDirectoryTest, Leaves_alone_what_others_wrote) {
  for (const char* const name : {"save-1000", "save-7.tmp", "save-6"}) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "__0_0.distcp") << "theirs";
  }
  std::ofstream(folder_ / "save-3") << "a file";
  save(layouts()[1], 5, 5, 1);
  EXPECT_THAT(names(), ElementsAre("save-1000", "save-3", "save-5", "save-6", "save-7.tmp"));
  const CheckpointDirectory directory(folder_, DeviceMesh("job", {{"a", 1}}, lone_rank(0, 1)));
  EXPECT_THAT(directory.others(),
              ElementsAre(Pair(3, folder_ / "save-3"), Pair(6, folder_ / "save-6"), Pair(1000, folder_ / "save-1000")));
  EXPECT_THAT([&] { save(layouts()[0], 6, 6); },
              ThrowsMessage<IoError>(HasSubstr("save-6, got one without a manifest")));
  expect_loads(layouts()[0], 5);
  std::ofstream(folder_ / "save-7.tmp" / "rank-0.cbor") << "ours";
  on_ranks(layouts()[0], [&](const DeviceMesh& mesh) { (void)CheckpointDirectory(folder_, mesh).prepare(); });
  EXPECT_FALSE(fs::exists(folder_ / "save-7.tmp" / "rank-0.cbor"));
  EXPECT_TRUE(fs::exists(folder_ / "save-7.tmp" / "__0_0.distcp"));
}

TEST_F(CheckpointDirectoryTest, In_use_by_a_job_is_refused_to_another_on_all_its_ranks) {
  const CheckpointDirectory first(folder_, DeviceMesh("job", {{"a", 1}}, lone_rank(0, 1)));
  auto lock = first.prepare();
  fs::create_directory(folder_ / "save-4.tmp");
  on_ranks(layouts()[1], [&](const DeviceMesh& mesh) {
    EXPECT_THAT([&] { (void)CheckpointDirectory(folder_, mesh).prepare(); },
                ThrowsMessage<IoError>(HasSubstr("to be in use by no other job, got another part of this job")));
  });
  EXPECT_TRUE(fs::exists(folder_ / "save-4.tmp"));
  lock.reset();
  on_ranks(layouts()[1], [&](const DeviceMesh& mesh) { (void)CheckpointDirectory(folder_, mesh).prepare(); });
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(CheckpointDirectoryTest, Stays_where_it_is_if_another_one_of_its_step_cannot_take_its_place) {
  save(layouts()[1], 4, 4);
  fs::create_directory(folder_ / "save-4.tmp");
  const bool could_mount = run_on_small_disk(folder_ / "save-4.tmp", [&] {  // a mount point cannot be renamed
    const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
    EXPECT_THAT([&] { CheckpointDirectory(folder_, alone).save(4, state_alone(5), {}); },
                ThrowsMessage<IoError>(HasSubstr((folder_ / "save-4").string())));
  });
  EXPECT_THAT(names(), ElementsAre("save-4", "save-4.tmp"));
  expect_loads(layouts()[0], 4);
  if (!could_mount) GTEST_SKIP() << "the system forbids mounting";
}

TEST_F(CheckpointDirectoryTest, Of_a_kill_while_another_one_of_its_step_takes_its_place_is_there_again) {
  save(layouts()[1], 4, 4);
  fs::copy(folder_ / "save-4", folder_ / "save-4.tmp", fs::copy_options::recursive);
  fs::rename(folder_ / "save-4", folder_ / "save-4.old");
  const CheckpointDirectory directory(folder_, DeviceMesh("job", {{"a", 1}}, lone_rank(0, 1)));
  (void)directory.prepare();
  EXPECT_THAT(names(), ElementsAre("save-4"));
  expect_loads(layouts()[0], 4);
  fs::copy(folder_ / "save-4", folder_ / "save-4.old", fs::copy_options::recursive);
  (void)directory.prepare();
  EXPECT_THAT(names(), ElementsAre("save-4"));
}

TEST_F(CheckpointDirectoryTest, Names_a_folder_that_cannot_be_looked_into) {
  save(layouts()[0], 2, 2);
  fs::create_symlink("save-7", folder_ / "save-7");
  EXPECT_THAT(complaint(state_alone()), AllOf(HasSubstr("expected to look into '" + (folder_ / "save-7").string()),
                                              HasSubstr("or move it away")));
}

TEST_F(CheckpointDirectoryTest, Is_none_in_a_folder_of_hugging_face_that_has_a_manifest_of_its_own) {
  save(layouts()[0], 2, 2);
  EXPECT_TRUE(checkpoint_at(folder_ / "save-2").has_value());
  fs::create_directories(folder_ / "theirs");
  std::ofstream(folder_ / "theirs" / "manifest.json") << R"({"name": "mine"})";
  EXPECT_THROW((void)checkpoint_at(folder_ / "theirs"), IoError);
  std::ofstream(folder_ / "theirs" / "model.safetensors") << "weights";
  EXPECT_FALSE(checkpoint_at(folder_ / "theirs").has_value());
}

TEST_F(CheckpointDirectoryTest, Of_a_link_removes_the_link_alone) {
  save(layouts()[0], 2, 2);
  const fs::path elsewhere = folder_.string() + "_elsewhere";
  fs::remove_all(elsewhere);
  fs::rename(folder_ / "save-2", elsewhere);
  fs::create_directory_symlink(elsewhere, folder_ / "save-2");
  expect_loads(layouts()[1], 2);
  save(layouts()[0], 3, 3, 1);
  EXPECT_THAT(names(), ElementsAre("save-3"));
  EXPECT_TRUE(fs::exists(elsewhere / "manifest.json"));
  fs::remove_all(elsewhere);
}

TEST_F(CheckpointDirectoryTest, Of_another_step_than_its_folder_says_is_refused) {
  save(layouts()[0], 2, 2);
  fs::rename(folder_ / "save-2", folder_ / "save-50");
  EXPECT_THAT(complaint(state_alone()),
              HasSubstr("expected step 50 in " + (folder_ / "save-50").string() + ", got step 2"));
}

TEST_F(CheckpointDirectoryTest, Says_before_any_work_that_a_folder_cannot_be_written) {
  std::ofstream(folder_) << "a file";
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  for (const fs::path& path : {folder_, folder_ / "below", fs::path("/proc/x"), fs::path("")}) {
    EXPECT_THAT([&] { (void)CheckpointDirectory(path, alone).prepare(); },
                ThrowsMessage<IoError>(HasSubstr("expected a folder to write to, '" + path.string() + "', got")));
  }
}

TEST_F(CheckpointDirectoryTest, Keeps_numbers_that_JSON_does_not_have) {
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  CheckpointState state = state_alone();
  const double infinity = std::numeric_limits<double>::infinity();
  state.values = {{"best", {infinity, -infinity, 1.5}}, {"task", {{"mean", std::nan("")}}}, {"text", "nan"}};
  const CheckpointDirectory directory(folder_, alone);
  directory.save(1, state, {});
  const auto values = directory.newest().value().values();
  EXPECT_EQ(values.at("best"), state.values.at("best"));
  EXPECT_TRUE(std::isnan(values.at("task").at("mean").get<double>()));
  EXPECT_EQ(values.at("text"), "nan");
}

TEST_F(CheckpointDirectoryTest, Of_ranks_that_disagree_is_refused_and_the_one_before_stays) {
  save(layouts()[1], 1, 1);
  const auto expect_refused = [&](const char* text, const std::function<void(CheckpointState&)>& change) {
    for (const std::int64_t rank : {0, 1}) {
      on_ranks(layouts()[1], [&](const DeviceMesh& mesh) {
        CheckpointState state = state_on(mesh, layouts()[1], 2);
        if (mesh.index() == rank) change(state);
        EXPECT_THAT([&] { CheckpointDirectory(folder_, mesh).save(2, state, {.num_to_keep = 1}); },
                    ::testing::Throws<Error>(::testing::Property(
                        &Error::what, AllOf(HasSubstr("expected the same tensors on all ranks"), HasSubstr(text)))));
      });
      EXPECT_THAT(names(), ElementsAre("save-1"));
      expect_loads(layouts()[0], 1);
    }
  };
  expect_refused("matrix", [](CheckpointState& state) { state.tensors.erase("matrix"); });
  expect_refused("more", [](CheckpointState& state) { state.tensors.emplace("more", state.tensors.at("matrix")); });
  expect_refused("matrix as ", [](CheckpointState& state) {
    at::Tensor& local = state.tensors.at("matrix").local;
    local = local.to(at::kFloat);
  });
}

TEST_F(CheckpointDirectoryTest, Loads_the_tensors_of_a_prefix) {
  save(layouts()[1], 1, 3);
  CheckpointState state = state_alone();
  std::erase_if(state.tensors, [](const auto& entry) { return !entry.first.starts_with("ma"); });
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  const auto saved = CheckpointDirectory(folder_, alone).newest();
  saved->load(state, alone, "ma");
  EXPECT_TRUE(at::equal(state.tensors.at("matrix").local, state_alone(3).tensors.at("matrix").local));
  EXPECT_THAT([&] { saved->load(state, alone); }, ThrowsMessage<StateError>(HasSubstr("it has also count, vector")));
}

TEST_F(CheckpointDirectoryTest, Keeps_the_newest) {
  for (const int step : {5, 10, 100, 15}) save(layouts()[1], step, step, 2);
  EXPECT_THAT(names(), ElementsAre("save-100", "save-15"));
  expect_loads(layouts()[1], 100);
}

TEST_F(CheckpointDirectoryTest, Is_none_without_a_folder_or_a_checkpoint) {
  EXPECT_EQ(complaint(state_alone()), "none");
  fs::create_directories(folder_);
  EXPECT_EQ(complaint(state_alone()), "none");
}

TEST_F(CheckpointDirectoryTest, Of_another_model_is_refused_before_anything_changes) {
  save(layouts()[3], 1, 3);
  CheckpointState state = state_alone();
  state.tensors.emplace("extra", state.tensors.at("vector"));
  EXPECT_THAT(complaint(state), AllOf(HasSubstr("save-1"), HasSubstr("it lacks extra")));
  state = state_alone();
  state.tensors.erase("vector");
  EXPECT_THAT(complaint(state), HasSubstr("it has also vector"));
  state = state_alone();
  state.tensors.at("matrix").local = state.tensors.at("matrix").local.to(at::kFloat);
  EXPECT_THAT(complaint(state), HasSubstr("others are matrix (Double [10, 7] there, Float [10, 7] here)"));
  EXPECT_EQ(state.tensors.at("count").local.item<std::int64_t>(), -7);
}

TEST_F(CheckpointDirectoryTest, Finds_a_flipped_byte_in_what_it_reads) {
  save(layouts()[1], 1, 3);
  const fs::path path = folder_ / "save-1/rank-1.safetensors";
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-3, std::ios::end);
  file.put('\x55');
  file.close();
  EXPECT_THAT(complaint(state_alone()), AllOf(HasSubstr("rank-1.safetensors"), HasSubstr("as it was written")));
}

TEST_F(CheckpointDirectoryTest, Names_a_file_that_is_gone_or_cut) {
  save(layouts()[1], 1, 3);
  // Nobody can download it again.
  const std::string remedy = cat("remove the folder ", (folder_ / "save-1").string(), ", and the job continues");
  const auto names_the_way_on = AllOf(HasSubstr("rank-1.safetensors"), Not(HasSubstr("download")), HasSubstr(remedy));
  fs::resize_file(folder_ / "save-1/rank-1.safetensors", 100);
  EXPECT_THAT(complaint(state_alone()), names_the_way_on);
  fs::remove(folder_ / "save-1/rank-1.safetensors");
  EXPECT_THAT(complaint(state_alone()),
              AllOf(names_the_way_on, HasSubstr("does not exist"), HasSubstr("the one before")));
}

TEST_F(CheckpointDirectoryTest, Refuses_any_damaged_manifest_without_a_crash) {
  save(layouts()[3], 1, 3);
  const fs::path path = folder_ / "save-1/manifest.json";
  std::ifstream in(path);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  for (std::size_t i = 0; i + 2 < whole.size(); i += 7) {
    for (const char wrong : {'9', '-', '"'}) {
      std::string text = whole;
      text[i] = wrong;
      const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (json == nlohmann::json::parse(whole)) continue;  // such as -0
      std::ofstream(path) << text;
      EXPECT_NE(complaint(state_alone()), "") << i;
    }
    std::ofstream(path) << whole.substr(0, i);
    EXPECT_NE(complaint(state_alone()), "") << i;
  }
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_THAT(complaint(state_alone()), HasSubstr("expected the file " + path.string()));
}

TEST_F(CheckpointDirectoryTest, Finds_a_changed_digit_anywhere_in_a_large_manifest) {
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  CheckpointState state = state_alone();
  state.values = {{"task", std::vector<int>(1 << 19, 1)}, {"step", 299999}};
  CheckpointDirectory(folder_, alone).save(1, state, {});
  EXPECT_EQ(complaint(state_alone()), "");
  const fs::path path = folder_ / "save-1/manifest.json";
  std::ifstream in(path);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  text.replace(text.find("299999"), 1, "7");
  std::ofstream(path) << text;
  EXPECT_THAT(complaint(state_alone()), AllOf(HasSubstr(path.string()), HasSubstr("whose checksum differs")));
}

TEST_F(CheckpointDirectoryTest, Holds_the_values_of_conjugated_and_negated_views) {
  const DeviceMesh alone("job", {{"a", 1}}, lone_rank(0, 1));
  const at::Tensor z = at::complex(numbers({6}, 1), numbers({6}, 20)).to(at::kComplexFloat);
  const auto state_of = [](const at::Tensor& conjugate, const at::Tensor& negative) {
    CheckpointState state;
    state.tensors.emplace("conjugate", whole_dtensor(conjugate));
    state.tensors.emplace("negative", whole_dtensor(negative));
    return state;
  };
  const CheckpointState saved = state_of(z.conj(), at::imag(z.conj()));
  ASSERT_TRUE(saved.tensors.at("conjugate").local.is_conj() && saved.tensors.at("negative").local.is_neg());
  const CheckpointDirectory directory(folder_, alone);
  directory.save(1, saved, {});
  const at::Tensor other = at::zeros({6}, at::kComplexFloat);
  for (const CheckpointState& state : {state_of(at::zeros_like(other), at::zeros({6}, at::kFloat)),
                                       state_of(other.conj(), at::imag(z.clone().conj()))}) {
    directory.newest()->load(state, alone);
    EXPECT_TRUE(at::equal(state.tensors.at("conjugate").local, z.conj().resolve_conj()));
    EXPECT_TRUE(at::equal(state.tensors.at("negative").local, -at::imag(z)));
  }
}

TEST_F(CheckpointDirectoryTest, Of_a_rank_that_cannot_write_is_none_and_all_ranks_say_so) {
  save(layouts()[1], 1, 1);
  int num_told = 0;
  std::mutex mutex;
  on_ranks(layouts()[1], [&](const DeviceMesh& mesh) {
    CheckpointState state = state_on(mesh, layouts()[1], 2);
    if (mesh.index() == 1) state.tensors.at("matrix").local = state.tensors.at("matrix").local.to(at::kComplexHalf);
    try {
      CheckpointDirectory(folder_, mesh).save(2, state, {});
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      ++num_told;
      EXPECT_THAT(error.what(), HasSubstr("matrix"));
    }
  });
  EXPECT_EQ(num_told, 2);
  EXPECT_THAT(names(), ElementsAre("save-1"));
  expect_loads(layouts()[0], 1);
}

// Values of [rows, 1024] float64, 8 KiB a row.
at::Tensor large(std::int64_t rows) { return numbers({rows, 1024}, 0); }

TEST_F(CheckpointDirectoryTest, Reads_of_files_what_a_rank_holds_and_the_rest_of_the_blocks_at_its_ends) {
  constexpr std::int64_t kRows = 2048;  // 16 MiB
  on_ranks({.axes = {{"a", 2}}}, [&](const DeviceMesh& mesh) {
    CheckpointState state;
    state.tensors.emplace("matrix", part_of(large(kRows), mesh, {Shard{0}}));
    CheckpointDirectory(folder_, mesh).save(1, state, {});
  });
  const std::int64_t share = kRows * 1024 * 8 / 8;
  for (const Placement& placement : {Placement(Shard{0}), Placement(Shard{1}), Placement(FlatShard{kRows * 1024, 0})}) {
    on_ranks({.axes = {{"a", 8}}}, [&](const DeviceMesh& mesh) {
      CheckpointState state;
      state.tensors.emplace("matrix", part_of(large(kRows).fill_(-1), mesh, {placement}));
      const BytesRead bytes = CheckpointDirectory(folder_, mesh).newest()->load(state, mesh);
      EXPECT_EQ(bytes.wanted, share);
      EXPECT_TRUE(at::equal(state.tensors.at("matrix").local, part_of(large(kRows), mesh, {placement}).local));
      const bool is_by_columns = placement == Placement(Shard{1});  // every row has some of each rank's
      const std::int64_t blocks = is_by_columns ? 8 * share : share;
      EXPECT_LE(bytes.read, blocks + blocks / 100) << "a checksum of 8 bytes for each of 8 KiB";
    });
  }
}

}  // namespace
}  // namespace d9d::test::checkpoint_directory_test
