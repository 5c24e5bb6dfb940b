#include "d9d/model_state/convert_model_state.h"

#include <sys/resource.h>

#include <fstream>
#include <iterator>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/model_state/write_model_state.h"

#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::convert_model_state_test {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using State = std::map<std::string, at::Tensor>;

State published() {
  State state = {{"count", at::arange(3)}, {"scale", at::randn({})}};
  for (int layer = 0; layer < 6; ++layer) {
    for (const std::string name : {"q", "k", "v"}) {
      state.emplace(cat("layers.", layer, ".", name), at::randn({name == "q" ? 7 : 4, 5}));
    }
    state.emplace(cat("layers.", layer, ".experts"), at::randn({2, 3, 5}).to(at::kBFloat16));
  }
  return state;
}

StateMapper packing() {
  std::vector<StateMapper> layers = {mapper::function("double", {"scale"}, {"scale", "twice"}, [](const auto& x) {
    return std::vector<at::Tensor>{x[0], x[0] * 2};
  })};
  for (int layer = 0; layer < 6; ++layer) {
    const std::string prefix = cat("layers.", layer, ".");
    layers.push_back(mapper::concatenate({prefix + "q", prefix + "k", prefix + "v"}, prefix + "qkv", 0));
    layers.push_back(mapper::sequential({mapper::transpose(prefix + "experts", 1, 2),
                                         mapper::unstack(prefix + "experts", {prefix + "e0", prefix + "e1"}, 0)}));
  }
  return mapper::parallel(std::move(layers));
}

HuggingFaceDirectory write(const fs::path& path, const State& state) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : state) sources.push_back(tensor_source(name, tensor));
  write_huggingface_directory(path, nlohmann::json::object(), sources, {.max_shard_bytes = 400});
  return HuggingFaceDirectory(path);
}

std::map<std::string, std::string> content_of(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    files.emplace(entry.path().filename(), std::string(std::istreambuf_iterator<char>(stream), {}));
  }
  return files;
}

TEST(ConvertModelState, Writes_the_bytes_that_a_model_s_ranks_write_with_any_number_of_workers) {
  const fs::path root = test::fresh_directory("d");
  const State state = published();
  const HuggingFaceDirectory directory = write(root / "published", state);
  for (const std::int64_t max_shard_bytes : {std::int64_t{1} << 30, std::int64_t{300}, std::int64_t{1}}) {
    const fs::path by_ranks = root / cat("ranks", max_shard_bytes);
    test::run_ranks(test::RankBackend::kThreads, 3, [&](World& world) {
      const DeviceMesh job("m", {{"r", 3}}, test::borrowed(world));
      std::map<std::string, DTensor> tensors;
      for (const auto& [name, tensor] : state) tensors.emplace(name, whole_dtensor(tensor));
      (void)write_model_state(by_ranks, packing(), tensors, job,
                              {.max_shard_bytes = max_shard_bytes, .files = {{"config.json", "{}\n"}}});
    });
    for (const int num_workers : {1, 3, 8}) {
      const fs::path folder = root / cat("workers", max_shard_bytes, "_", num_workers);
      const auto unused = convert_model_state(
          folder, packing(), tensors_of(directory),
          {.max_shard_bytes = max_shard_bytes, .num_workers = num_workers, .files = {{"config.json", "{}\n"}}});
      EXPECT_THAT(unused, ElementsAre("count"));
      EXPECT_TRUE(content_of(folder) == content_of(by_ranks)) << num_workers << " workers, " << max_shard_bytes;
    }
  }
}

TEST(ConvertModelState, Writes_one_file_of_a_name_whatever_its_size) {
  const fs::path root = test::fresh_directory("d");
  const State state = published();
  const HuggingFaceDirectory directory = write(root / "published", state);
  test::run_ranks(test::RankBackend::kThreads, 2, [&](World& world) {
    const DeviceMesh job("m", {{"r", 2}}, test::borrowed(world));
    std::map<std::string, DTensor> tensors;
    for (const auto& [name, tensor] : state) tensors.emplace(name, whole_dtensor(tensor));
    (void)write_model_state(root / "ranks", packing(), tensors, job,
                            {.max_shard_bytes = 1, .only_file = "adapter_model.safetensors"});
  });
  convert_model_state(root / "workers", packing(), tensors_of(directory),
                      {.max_shard_bytes = 1, .only_file = "adapter_model.safetensors"});
  convert_model_state(root / "model", packing(), tensors_of(directory));
  EXPECT_TRUE(content_of(root / "ranks") == content_of(root / "workers"));
  const auto written = content_of(root / "ranks");
  ASSERT_EQ(written.size(), 1);
  EXPECT_TRUE(written.at("adapter_model.safetensors") == content_of(root / "model").at("model.safetensors"));
}

// What several processes would share out: mapper::shard.
TEST(ConvertModelState, Makes_each_tensor_in_one_shard_of_a_mapper) {
  const fs::path root = test::fresh_directory("d");
  const HuggingFaceDirectory directory = write(root / "published", published());
  convert_model_state(root / "whole", packing(), tensors_of(directory));
  const HuggingFaceDirectory whole(root / "whole");
  std::vector<std::string> names;
  for (int index = 0; index < 8; ++index) {
    const fs::path folder = root / cat("part", index);
    convert_model_state(folder, mapper::shard(packing(), 8, index), tensors_of(directory));
    const HuggingFaceDirectory part(folder);
    for (const std::string& name : part.names()) {
      names.push_back(name);
      EXPECT_TRUE(at::equal(part.find(name)->read(), whole.find(name)->read())) << name;
    }
  }
  std::ranges::sort(names);
  EXPECT_EQ(names, whole.names());
}

TEST(ConvertModelState, Has_few_files_open_however_many_it_writes) {
  const fs::path root = test::fresh_directory("d");
  State state;
  for (int i = 0; i < 300; ++i) state.emplace(cat("t", i), at::full({4}, i));
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : state) sources.push_back(tensor_source(name, tensor));
  write_huggingface_directory(root / "one_file", nlohmann::json::object(), sources);
  const HuggingFaceDirectory directory(root / "one_file");
  std::set<std::string> names;
  for (const auto& [name, tensor] : state) names.insert(name);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const rlimit few{.rlim_cur = 100, .rlim_max = limit.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &few);
  convert_model_state(root / "m", mapper::identities(names), tensors_of(directory),
                      {.max_shard_bytes = 1, .num_workers = 4});
  ::setrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(content_of(root / "m").size(), 301);
}

TEST(ConvertModelState, Tells_how_far_it_is) {
  const fs::path root = test::fresh_directory("d");
  const HuggingFaceDirectory directory = write(root / "published", published());
  std::vector<ConvertProgress> told;
  convert_model_state(root / "m", packing(), tensors_of(directory),
                      {.num_workers = 4, .on_progress = [&](const ConvertProgress& each) { told.push_back(each); }});
  EXPECT_EQ(told.front().num_written, 0);
  EXPECT_EQ(told.back().num_written, 20);
  EXPECT_EQ(told.back().num_tensors, 20);
  EXPECT_EQ(told.back().bytes_written, told.back().num_bytes);
  EXPECT_TRUE(std::ranges::is_sorted(told, {}, &ConvertProgress::num_written));
}

TEST(ConvertModelState, Leaves_nothing_when_it_is_ended) {
  const fs::path root = test::fresh_directory("d");
  const HuggingFaceDirectory directory = write(root / "published", published());
  const auto stop = [](const ConvertProgress& each) {
    if (each.num_written > 3) throw IoError("enough");
  };
  for (const int num_workers : {1, 4}) {
    EXPECT_THAT(test::message_of<IoError>([&] {
                  convert_model_state(root / "m", packing(), tensors_of(directory),
                                      {.num_workers = num_workers, .on_progress = stop});
                }),
                HasSubstr("enough"));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(root), fs::directory_iterator()), 1);
}

TEST(ConvertModelState, Names_what_is_missing_or_does_not_fit_before_it_writes) {
  const fs::path root = test::fresh_directory("d");
  State state = published();
  state.erase("layers.1.k");
  const HuggingFaceDirectory lacking = write(root / "lacking", state);
  EXPECT_THAT(test::message_of<StateError>([&] { convert_model_state(root / "m", packing(), tensors_of(lacking)); }),
              HasSubstr("'layers.1.k'"));
  state["layers.1.k"] = at::ones({4, 6});
  const HuggingFaceDirectory wrong = write(root / "wrong", state);
  EXPECT_THAT(test::message_of<StateError>([&] { convert_model_state(root / "m", packing(), tensors_of(wrong)); }),
              AllOf(HasSubstr("layers.1."), HasSubstr("concatenate"), HasSubstr("[4, 6]"), HasSubstr(".safetensors")));
  EXPECT_FALSE(fs::exists(root / "m"));
}

TEST(ConvertModelState, Ends_with_one_error_when_the_disk_is_full) {
  const fs::path root = test::fresh_directory("d");
  const bool could_mount = test::run_on_small_disk(root, [&] {
    State state;
    for (int i = 0; i < 8; ++i) state.emplace(cat("t", i), at::randn({4096}));
    EXPECT_THAT(test::message_of<IoError>([&] {
                  convert_model_state(root / "m", mapper::identities({"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7"}),
                                      tensors_of(state), {.max_shard_bytes = 20000});
                }),
                HasSubstr("No space left"));
    EXPECT_TRUE(fs::is_empty(root));
  });
  if (!could_mount) GTEST_SKIP() << "the system forbids mounting";
}

}  // namespace
}  // namespace d9d::convert_model_state_test
