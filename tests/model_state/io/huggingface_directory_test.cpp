#include "d9d/model_state/io/huggingface_directory.h"

#include <fstream>
#include <iterator>
#include <set>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/model_state/io/safetensors.h"

#include "tests/support/io_faults.h"

namespace d9d::huggingface_directory_test {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

at::Tensor counting(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).reshape(shape);
}

TensorSource floats(const std::string& name, std::int64_t count) { return tensor_source(name, counting({count})); }

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

// Three tensors of 40 bytes in shards of at most 80 bytes.
fs::path three_tensors_in_two_shards() {
  const fs::path path = test::fresh_directory("d") / "model";
  write_huggingface_directory(path, {{"model_type", "any"}}, {floats("a", 10), floats("b", 10), floats("c", 10)},
                              {.max_shard_bytes = 80});
  return path;
}

TEST(HuggingFaceDirectory, Of_one_file_round_trips) {
  const fs::path path = test::fresh_directory("d") / "parents" / "model";
  write_huggingface_directory(path, {{"model_type", "any"}}, {floats("a", 3), tensor_source("b", counting({2, 2}))});
  EXPECT_THAT(names_in(path), ElementsAre("config.json", "model.safetensors"));
  const HuggingFaceDirectory directory(path);
  EXPECT_EQ(directory.read_config(), (json{{"model_type", "any"}}));
  EXPECT_THAT(directory.names(), ElementsAre("a", "b"));
  const std::optional<TensorSource> source = directory.find("b");
  EXPECT_EQ(source->shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(source->origin, path / "model.safetensors");
  EXPECT_TRUE(at::equal(source->read(), counting({2, 2})));
  EXPECT_FALSE(directory.find("c"));
}

TEST(HuggingFaceDirectory, Of_shards_round_trips) {
  const fs::path path = three_tensors_in_two_shards();
  EXPECT_THAT(names_in(path), ElementsAre("config.json", "model-00001-of-00002.safetensors",
                                          "model-00002-of-00002.safetensors", "model.safetensors.index.json"));
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(directory.names(), ElementsAre("a", "b", "c"));
  EXPECT_EQ(directory.find("b")->origin, path / "model-00001-of-00002.safetensors");
  EXPECT_TRUE(at::equal(directory.find("c")->read(), counting({10})));
}

TEST(HuggingFaceDirectory, Has_an_index_with_total_size_and_a_file_for_each_tensor) {
  const fs::path path = test::fresh_directory("d") / "model";
  write_huggingface_directory(path, json::object(), {tensor_source("weight", counting({4, 2})), floats("bias", 2)},
                              {.max_shard_bytes = 10});
  EXPECT_EQ(content_of(path / "model.safetensors.index.json"),
            R"({
    "metadata": {
        "total_size": 40
    },
    "weight_map": {
        "bias": "model-00002-of-00002.safetensors",
        "weight": "model-00001-of-00002.safetensors"
    }
})");
}

TEST(HuggingFaceDirectory, Gives_a_tensor_larger_than_a_shard_its_own_file) {
  const fs::path path = test::fresh_directory("d") / "model";
  write_huggingface_directory(path, json::object(), {floats("a", 1), floats("huge", 100), floats("b", 1)},
                              {.max_shard_bytes = 40});
  const HuggingFaceDirectory directory(path);
  EXPECT_EQ(directory.find("a")->origin, path / "model-00001-of-00003.safetensors");
  EXPECT_EQ(directory.find("huge")->origin, path / "model-00002-of-00003.safetensors");
  EXPECT_EQ(directory.find("b")->origin, path / "model-00003-of-00003.safetensors");
}

TEST(HuggingFaceDirectory, Opens_only_the_shards_that_hold_what_is_asked_for) {
  const fs::path path = three_tensors_in_two_shards();
  write_file_atomically(path / "model-00002-of-00002.safetensors", "garbage");
  const HuggingFaceDirectory directory(path);
  EXPECT_TRUE(at::equal(directory.find("a")->read(), counting({10})));
  EXPECT_THAT(test::message_of<IoError>([&] { (void)directory.find("c"); }),
              HasSubstr("model-00002-of-00002.safetensors"));
}

TEST(HuggingFaceDirectory, Names_the_shard_that_is_missing) {
  const fs::path path = three_tensors_in_two_shards();
  fs::remove(path / "model-00002-of-00002.safetensors");
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)directory.find("c"); }),
              AllOf(HasSubstr((path / "model-00002-of-00002.safetensors").string()), HasSubstr("No such file")));
}

TEST(HuggingFaceDirectory, Names_file_and_tensor_when_the_index_lies) {
  const fs::path path = three_tensors_in_two_shards();
  json index = json::parse(content_of(path / "model.safetensors.index.json"));
  index["weight_map"]["c"] = "model-00001-of-00002.safetensors";
  write_file_atomically(path / "model.safetensors.index.json", index.dump());
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)directory.find("c"); }),
              AllOf(HasSubstr("'c'"), HasSubstr((path / "model-00001-of-00002.safetensors").string())));
}

TEST(HuggingFaceDirectory, Names_a_tensor_of_a_file_that_the_index_lacks) {
  const fs::path path = three_tensors_in_two_shards();
  json index = json::parse(content_of(path / "model.safetensors.index.json"));
  index["weight_map"].erase("a");
  write_file_atomically(path / "model.safetensors.index.json", index.dump());
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)directory.find("b"); }),
              AllOf(HasSubstr("'a'"), HasSubstr("'model-00001-of-00002.safetensors'"), HasSubstr(path.string())));
}

TEST(HuggingFaceDirectory, Refuses_an_index_that_points_out_of_the_folder) {
  const fs::path path = test::fresh_directory("d");
  for (const char* file : {"\"../other.safetensors\"", "\"/etc/passwd\"", "\"\"", "7"}) {
    write_file_atomically(path / "model.safetensors.index.json", cat(R"({"weight_map": {"a": )", file, "}}"));
    EXPECT_THAT(test::message_of<IoError>([&] { HuggingFaceDirectory directory(path); }),
                AllOf(HasSubstr("'a'"), HasSubstr(file)));
  }
}

TEST(HuggingFaceDirectory, Refuses_a_damaged_index_and_config) {
  const fs::path path = test::fresh_directory("d");
  const std::string deep = R"({"weight_map": )" + std::string(200000, '[') + std::string(200000, ']') + "}";
  for (const std::string& text : {std::string("{\"weight_map\": {"), std::string("[]"), std::string("{}"),
                                  std::string("{\"weight_map\": []}"), deep}) {
    write_file_atomically(path / "model.safetensors.index.json", text);
    EXPECT_THAT(test::message_of<IoError>([&] { HuggingFaceDirectory directory(path); }),
                HasSubstr("model.safetensors.index.json"));
  }
  write_file_atomically(path / "model.safetensors.index.json", R"({"weight_map": {}})");
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)directory.read_config(); }), HasSubstr("config.json"));
  write_file_atomically(path / "config.json", "not json");
  EXPECT_THAT(test::message_of<IoError>([&] { (void)directory.read_config(); }), HasSubstr("config.json"));
}

TEST(HuggingFaceDirectory, Names_the_files_it_looked_for_when_there_is_no_model) {
  const fs::path path = test::fresh_directory("d");
  EXPECT_THAT(test::message_of<IoError>([&] { HuggingFaceDirectory directory(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("model.safetensors.index.json")));
}

TEST(HuggingFaceDirectory, Replaces_an_earlier_export_as_a_whole) {
  const fs::path path = three_tensors_in_two_shards();
  write_huggingface_directory(path, json::object(), {floats("a", 1)});
  EXPECT_THAT(names_in(path), ElementsAre("config.json", "model.safetensors"));
  EXPECT_THAT(names_in(path.parent_path()), ElementsAre("model"));
}

TEST(HuggingFaceDirectory, Refuses_to_replace_a_folder_with_other_files_before_a_tensor_is_read) {
  const fs::path path = three_tensors_in_two_shards();
  write_file_atomically(path / "tokenizer.json", "mine");
  const TensorSource unread = {.name = "a", .dtype = at::kFloat, .shape = {1}, .read = []() -> at::Tensor {
                                 ADD_FAILURE() << "was read";
                                 return {};
                               }};
  EXPECT_THAT(test::message_of<IoError>([&] { write_huggingface_directory(path, json::object(), {unread}); }),
              HasSubstr(path.string()));
  EXPECT_EQ(content_of(path / "tokenizer.json"), "mine");
}

TEST(HuggingFaceDirectory, Refuses_to_replace_a_folder_with_weights_that_are_no_shards) {
  for (const char* const name : {"model-best.safetensors", "model-00001-of-2.safetensors"}) {
    const fs::path path = test::fresh_directory("d");
    write_file_atomically(path / "config.json", "{}");
    write_file_atomically(path / name, "mine");
    EXPECT_THROW(check_huggingface_target(path), IoError);
    EXPECT_THROW(write_huggingface_directory(path, json::object(), {floats("a", 1)}), IoError);
    EXPECT_THAT(names_in(path), ElementsAre("config.json", name));
  }
}

TEST(HuggingFaceDirectory, Refuses_two_tensors_of_one_name_in_different_shards) {
  const fs::path path = test::fresh_directory("d") / "model";
  EXPECT_THAT(test::message_of<StateError>([&] {
                write_huggingface_directory(path, json::object(), {floats("twin", 10), floats("twin", 10)},
                                            {.max_shard_bytes = 40});
              }),
              HasSubstr("'twin'"));
  EXPECT_FALSE(fs::exists(path));
}

TEST(HuggingFaceDirectory, Leaves_nothing_behind_on_a_full_disk) {
  const fs::path parent = test::fresh_directory("d");
  const bool ran = test::run_on_small_disk(parent, [&] {
    EXPECT_THAT(test::message_of<IoError>([&] {
                  write_huggingface_directory(parent / "model", json::object(), {floats("a", 10), floats("b", 50'000)},
                                              {.max_shard_bytes = 40});
                }),
                AllOf(HasSubstr("model-00002-of-00002.safetensors"), HasSubstr("No space left on device")));
    EXPECT_TRUE(fs::is_empty(parent));
  });
  if (!ran) GTEST_SKIP() << "mounting is not allowed here";
}

TEST(HuggingFaceDirectory, Names_path_and_cause_when_the_place_is_not_writable) {
  const fs::path parent = test::fresh_directory("d");
  fs::permissions(parent, fs::perms::owner_read | fs::perms::owner_exec | fs::perms::others_exec);
  test::run_unprivileged([&] {
    for (const fs::path& path : {parent / "model", parent / "more" / "model"}) {
      EXPECT_THAT(test::message_of<IoError>([&] { write_huggingface_directory(path, json::object(), {}); }),
                  AllOf(HasSubstr(path.string()), HasSubstr("Permission denied")));
    }
  });
  fs::permissions(parent, fs::perms::owner_all);
}

}  // namespace
}  // namespace d9d::huggingface_directory_test
