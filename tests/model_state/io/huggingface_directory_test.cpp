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
using ::testing::IsEmpty;
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
  write_file_atomically(path / "notes.txt", "mine");
  const TensorSource unread = {.name = "a", .dtype = at::kFloat, .shape = {1}, .read = []() -> at::Tensor {
                                 ADD_FAILURE() << "was read";
                                 return {};
                               }};
  EXPECT_THAT(test::message_of<IoError>([&] { write_huggingface_directory(path, json::object(), {unread}); }),
              HasSubstr(path.string()));
  EXPECT_EQ(content_of(path / "notes.txt"), "mine");
}

// Another job may have written the tokenizer: its ids are other texts than those of these weights.
TEST(HuggingFaceDirectory, Keeps_what_people_wrote_about_a_model_and_no_tokenizer_of_another_export) {
  const fs::path path = three_tensors_in_two_shards();
  const std::vector<std::string> tokens = {"chat_template.jinja", "generation_config.json", "tokenizer.json"};
  for (const std::string& name : tokens) write_file_atomically(path / name, "another job's");
  for (const char* name : {"LICENSE", "README.md"}) write_file_atomically(path / name, "mine");
  EXPECT_NO_THROW(check_huggingface_target(path));
  EXPECT_EQ(token_files_that_go(path, {{"config.json", "{}"}}), tokens);
  EXPECT_THAT(token_files_that_go(path, {{"tokenizer.json", "its own"}}), IsEmpty());
  write_huggingface_directory(path, json::object(), {floats("a", 1)});
  EXPECT_THAT(names_in(path), ElementsAre("LICENSE", "README.md", "config.json", "model.safetensors"));
  EXPECT_EQ(content_of(path / "README.md"), "mine");

  for (const std::string& name : tokens) write_file_atomically(path / name, "another job's");
  HuggingFaceExport next(path, {{"config.json", "{}"}, {"tokenizer.json", "its own"}});
  write_safetensors(next.staging() / "model.safetensors", {floats("a", 1)});
  next.commit({{floats("a", 1)}});
  EXPECT_THAT(names_in(path),
              ElementsAre("LICENSE", "README.md", "config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_EQ(content_of(path / "tokenizer.json"), "its own");
}

TEST(HuggingFaceDirectory, Refuses_to_replace_a_published_model_with_its_tokenizer) {
  const fs::path path = three_tensors_in_two_shards();
  write_file_atomically(path / "config.json", R"({"transformers_version": "5.0"})");
  write_file_atomically(path / "tokenizer.json", "published");
  EXPECT_THROW(check_huggingface_target(path, {{"tokenizer.json", "its own"}}), IoError);
}

TEST(HuggingFaceDirectory, Replaces_exported_adapters_and_refuses_those_of_peft) {
  const fs::path path = test::fresh_directory("d");
  write_file_atomically(path / "adapter_config.json", R"({"r": 4})");
  write_file_atomically(path / "adapter_model.safetensors", "of an earlier export");
  EXPECT_NO_THROW(check_huggingface_target(path));
  write_file_atomically(path / "adapter_config.json", R"({"r": 4, "peft_version": "0.21.2"})");
  EXPECT_THROW(check_huggingface_target(path), IoError);
}

TEST(HuggingFaceDirectory, Is_exported_to_by_one_job_at_a_time) {
  const fs::path path = test::fresh_directory("d") / "model";
  auto lock = lock_huggingface_target(path);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)lock_huggingface_target(path); }),
              AllOf(HasSubstr(path.string()), HasSubstr("in use by no other job")));
  EXPECT_FALSE(fs::exists(path));
  write_huggingface_directory(path, json::object(), {floats("a", 1)});
  lock.reset();
  EXPECT_THAT(names_in(path.parent_path()), ElementsAre("model"));
  EXPECT_NO_THROW((void)lock_huggingface_target(path));
}

std::string refusal_of(const fs::path& path) {
  return test::message_of<IoError>([&] { HuggingFaceDirectory directory(path); });
}

TEST(HuggingFaceDirectory, Says_what_is_there_in_place_of_weights) {
  const fs::path path = test::fresh_directory("d");
  EXPECT_THAT(refusal_of(path / "gone"), AllOf(HasSubstr("gone'"), HasSubstr("does not exist. Check the path")));
  EXPECT_THAT(refusal_of("Qwen/Qwen3-0.6B"),
              AllOf(HasSubstr("does not exist"), HasSubstr("hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B")));
  write_file_atomically(path / "a.safetensors", "");
  EXPECT_THAT(refusal_of(path / "a.safetensors"), HasSubstr("which is a file. Name the folder"));
  write_file_atomically(path / "pytorch_model.bin", "");
  EXPECT_THAT(refusal_of(path), AllOf(HasSubstr("pytorch_model.bin"), HasSubstr("as safetensors")));
  constexpr const char* kPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
  write_file_atomically(path / "model.safetensors", kPointer);
  EXPECT_THAT(refusal_of(path), AllOf(HasSubstr("model.safetensors'"), HasSubstr("git lfs pull")));
}

TEST(HuggingFaceDirectory, Says_that_it_does_not_read_an_index_beside_a_single_file) {
  const fs::path path = three_tensors_in_two_shards();
  EXPECT_EQ(ignored_index(path), std::nullopt);
  write_safetensors(path / "model.safetensors", {floats("a", 1)});
  EXPECT_EQ(ignored_index(path), "model.safetensors.index.json");
  EXPECT_THAT(HuggingFaceDirectory(path).names(), ElementsAre("a"));
}

TEST(HuggingFaceDirectory, Unties_a_head_that_is_not_the_embedding) {
  const fs::path path = test::fresh_directory("d") / "model";
  const at::Tensor embedding = counting({4, 2}), other = embedding + 1;
  const json tied = {{"tie_word_embeddings", true}};
  const auto is_tied = [&](const json& config, const std::vector<TensorSource>& tensors) {
    write_huggingface_directory(path, config, tensors);
    const HuggingFaceDirectory directory(path);
    const bool result = directory.read_config().value("tie_word_embeddings", false);
    EXPECT_EQ(directory.has_untied_head(), config == tied && !result);
    return result;
  };
  const TensorSource theirs = tensor_source("model.embed_tokens.weight", embedding);
  EXPECT_TRUE(is_tied(tied, {theirs}));
  EXPECT_TRUE(is_tied(tied, {theirs, tensor_source("lm_head.weight", embedding.clone())}));
  EXPECT_TRUE(is_tied(tied, {theirs, tensor_source("lm_head.weight", embedding.to(at::kBFloat16))}));
  EXPECT_FALSE(is_tied(tied, {theirs, tensor_source("lm_head.weight", other)}));
  EXPECT_FALSE(is_tied({{"tie_word_embeddings", false}}, {theirs, tensor_source("lm_head.weight", other)}));
}

// A tensor of four bits an element, as newer files have them, among others.
TEST(HuggingFaceDirectory, Needs_a_dtype_that_it_knows_only_of_tensors_that_are_used) {
  const fs::path path = test::fresh_directory("d");
  std::string header = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                       R"("b":{"dtype":"F4","shape":[4],"data_offsets":[4,6]}})";
  header.resize(128, ' ');
  const std::uint64_t length = header.size();
  write_file_atomically(path / "model.safetensors",
                        std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(6, '\0'));
  const HuggingFaceDirectory directory(path);
  EXPECT_THAT(directory.names(), ElementsAre("a", "b"));
  EXPECT_EQ(directory.find("a")->read().item<float>(), 0);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)directory.find("b")->read(); }),
              AllOf(HasSubstr("'b'"), HasSubstr("F4"), HasSubstr("model.safetensors")));
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
