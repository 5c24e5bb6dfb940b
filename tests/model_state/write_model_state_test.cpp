#include "d9d/model_state/write_model_state.h"

#include <fstream>
#include <iterator>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapped_sources.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::write_model_state_test {
namespace {
namespace fs = std::filesystem;
using test::RankBackend;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

Tensors whole() {
  Tensors tensors;
  for (const std::string name : {"q", "k", "v"}) tensors.emplace(name, at::randn({name == "q" ? 7 : 4, 5}));
  tensors.emplace("experts", at::randn({4, 3, 5}).to(at::kBFloat16));
  tensors.emplace("scale", at::randn({}));
  tensors.emplace("count", at::arange(3));
  return tensors;
}

StateMapper mapper_of_model() {
  return mapper::parallel({mapper::concatenate({"q", "k", "v"}, "qkv", 0),
                           mapper::sequential({mapper::transpose("experts", 1, 2),
                                               mapper::unstack("experts", {"e0", "e1", "e2", "e3"}, 0)}),
                           mapper::function("double", {"scale"}, {"scale"}, [](const auto& inputs) {
                             return std::vector<at::Tensor>{inputs[0] * 2};
                           })});
}

// The files of a folder with their bytes.
std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    files.emplace(entry.path().filename(), std::string(std::istreambuf_iterator<char>(stream), {}));
  }
  return files;
}

// How matrices lie over the ranks of a job.
using LayOut = std::function<DTensor(const at::Tensor& tensor, const DeviceMesh& mesh)>;

DTensor by_dim(const at::Tensor& tensor, const DeviceMesh& mesh, std::int64_t dim) {
  Placements placements(mesh.axes().size(), Replicate{});
  if (dim < tensor.dim()) placements.back() = d9d::Shard{dim};
  return distribute(tensor, mesh, placements);
}

void write_on(RankBackend backend, std::vector<MeshAxis> axes, const Tensors& tensors, const LayOut& lay_out,
              const fs::path& folder, std::int64_t max_shard_bytes) {
  std::int64_t num_ranks = 1;
  for (const MeshAxis& axis : axes) num_ranks *= axis.size;
  test::run_ranks(backend, num_ranks, [&](World& world) {
    const DeviceMesh mesh("m", axes, test::borrowed(world));
    std::map<std::string, DTensor> state;
    for (const auto& [name, tensor] : tensors) {
      state.emplace(name, name == "count" ? whole_dtensor(tensor) : lay_out(tensor, mesh));
    }
    const auto unused = write_model_state(folder, mapper_of_model(), state, mesh,
                                          {.max_shard_bytes = max_shard_bytes, .files = {{"config.json", "{}\n"}}});
    EXPECT_THAT(unused, ElementsAre("count"));
  });
}

TEST(WriteModelState, Writes_the_same_bytes_from_any_layout_and_number_of_ranks) {
  const Tensors tensors = whole();
  const fs::path root = test::fresh_directory("d");
  for (const std::int64_t max_shard_bytes : {std::int64_t{1} << 30, std::int64_t{100}}) {
    const fs::path one = root / cat("one", max_shard_bytes);
    const LayOut replicated = [](const at::Tensor& tensor, const DeviceMesh& mesh) { return by_dim(tensor, mesh, 99); };
    write_on(RankBackend::kThreads, {{"r", 1}}, tensors, replicated, one, max_shard_bytes);
    const auto expected = content_of(one);
    EXPECT_EQ(expected.contains("model.safetensors"), max_shard_bytes > 100);
    int number = 0;
    for (const RankBackend backend : {RankBackend::kThreads, RankBackend::kGloo}) {
      for (const std::int64_t dim : {99, 0, 1, 2}) {
        for (const std::vector<MeshAxis>& axes : {std::vector<MeshAxis>{{"r", 4}}, {{"a", 2}, {"b", 2}}, {{"r", 3}}}) {
          const fs::path folder = root / cat("f", number++);
          write_on(
              backend, axes, tensors,
              [&](const at::Tensor& tensor, const DeviceMesh& mesh) { return by_dim(tensor, mesh, dim); }, folder,
              max_shard_bytes);
          EXPECT_TRUE(content_of(folder) == expected) << dim << " over " << axes.size() << " axes";
        }
      }
    }
  }
}

TEST(WriteModelState, Writes_what_the_mapper_makes) {
  const Tensors tensors = whole();
  const fs::path folder = test::fresh_directory("d") / "m";
  write_on(
      RankBackend::kThreads, {{"r", 2}}, tensors,
      [](const at::Tensor& tensor, const DeviceMesh& mesh) { return by_dim(tensor, mesh, 0); }, folder, 1 << 20);
  const HuggingFaceDirectory directory(folder);
  EXPECT_THAT(directory.names(), ElementsAre("e0", "e1", "e2", "e3", "qkv", "scale"));
  EXPECT_TRUE(at::equal(directory.find("qkv")->read(), at::cat({tensors.at("q"), tensors.at("k"), tensors.at("v")})));
  EXPECT_TRUE(at::equal(directory.find("e2")->read(), tensors.at("experts")[2].t()));
  EXPECT_TRUE(at::equal(directory.find("scale")->read(), tensors.at("scale") * 2));
}

TEST(WriteModelState, Writes_the_values_of_negated_views_from_any_rank) {
  const fs::path folder = test::fresh_directory("d") / "m";
  const at::Tensor real = at::arange(12, at::kDouble).view({4, 3});
  test::run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh job("m", {{"r", 2}}, test::borrowed(world));
    DTensor rows = by_dim(real, job, 0);
    rows.local = at::_neg_view(rows.local);  // contiguous
    ASSERT_TRUE(rows.local.is_neg());
    (void)write_model_state(folder, mapper::identity("rows"), {{"rows", rows}}, job, {});
  });
  EXPECT_TRUE(at::equal(HuggingFaceDirectory(folder).find("rows")->read(), -real));
}

TEST(WriteModelState, Takes_tensors_that_only_some_ranks_have) {
  const Tensors tensors = whole();
  const fs::path folder = test::fresh_directory("d") / "m";
  test::run_ranks(RankBackend::kThreads, 3, [&](World& world) {
    const DeviceMesh job("m", {{"r", 3}}, test::borrowed(world));
    std::map<std::string, DTensor> state;  // the stages of a pipeline; the last rank has none
    for (const auto& [name, tensor] : tensors) {
      if ((name == "q" || name == "scale") == (world.rank() == 1) && world.rank() < 2)
        state.emplace(name, whole_dtensor(tensor));
    }
    (void)write_model_state(folder, mapper_of_model(), state, job, {.max_shard_bytes = 60});
  });
  const HuggingFaceDirectory directory(folder);
  EXPECT_TRUE(at::equal(directory.find("qkv")->read(), at::cat({tensors.at("q"), tensors.at("k"), tensors.at("v")})));
}

TEST(WriteModelState, Names_missing_tensors_on_all_ranks_and_leaves_nothing) {
  const fs::path root = test::fresh_directory("d");
  test::run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh job("m", {{"r", 2}}, test::borrowed(world));
    const std::map<std::string, DTensor> state = {{"q", whole_dtensor(at::ones({2, 2}))}};
    EXPECT_THAT(
        test::message_of<StateError>([&] { (void)write_model_state(root / "m", mapper_of_model(), state, job); }),
        AllOf(HasSubstr("4 missing"), HasSubstr("'experts', 'k', 'scale', 'v'")));
    const std::map<std::string, DTensor> sums = {
        {"q", {.local = at::ones({2}), .mesh = job, .placements = {Partial{}}, .global_shape = {2}}}};
    EXPECT_THAT(
        test::message_of<ConfigError>([&] { (void)write_model_state(root / "m", mapper::identity("q"), sums, job); }),
        HasSubstr("'q'"));
  });
  EXPECT_TRUE(fs::is_empty(root));
}

TEST(WriteModelState, Fails_on_all_ranks_when_a_disk_is_full_and_keeps_the_earlier_export) {
  const fs::path root = test::fresh_directory("d");
  const bool could_mount = test::run_on_small_disk(root, [&] {
    const Tensors tensors = {{"a", at::randn({64})}, {"b", at::randn({64})}};
    const auto write = [&](const Tensors& values) {
      test::run_ranks(RankBackend::kThreads, 1, [&](World& world) {
        const DeviceMesh job("m", {{"r", 1}}, test::borrowed(world));
        std::map<std::string, DTensor> state;
        for (const auto& [name, tensor] : values) state.emplace(name, whole_dtensor(tensor));
        (void)write_model_state(root / "m", mapper::identities({"a", "b"}), state, job, {.max_shard_bytes = 300});
      });
    };
    write(tensors);
    const auto before = content_of(root / "m");
    const Tensors large = {{"a", at::randn({64})}, {"b", at::randn({32768})}};
    EXPECT_THAT(test::message_of<IoError>([&] { write(large); }), HasSubstr("No space left"));
    EXPECT_TRUE(content_of(root / "m") == before);
    EXPECT_EQ(std::distance(fs::directory_iterator(root), fs::directory_iterator()), 1);
  });
  if (!could_mount) GTEST_SKIP() << "the system forbids mounting";
}

TEST(WriteModelState, Refuses_to_write_nothing) {
  const fs::path root = test::fresh_directory("d");
  test::run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh job("m", {{"r", 2}}, test::borrowed(world));
    EXPECT_THAT(
        test::message_of<StateError>([&] { (void)write_model_state(root / "m", mapper::parallel({}), {}, job); }),
        HasSubstr("expected at least one tensor to write"));
  });
  EXPECT_TRUE(fs::is_empty(root));
}

TEST(WriteModelState, Refuses_a_folder_with_other_files) {
  const fs::path root = test::fresh_directory("d");
  fs::create_directories(root / "m");
  std::ofstream(root / "m" / "notes.txt") << "mine";
  test::run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh job("m", {{"r", 2}}, test::borrowed(world));
    const std::map<std::string, DTensor> state = {{"a", whole_dtensor(at::ones({2}))}};
    EXPECT_THROW((void)write_model_state(root / "m", mapper::identity("a"), state, job), IoError);
  });
  EXPECT_TRUE(fs::exists(root / "m" / "notes.txt"));
}

}  // namespace
}  // namespace d9d::write_model_state_test
