#include "d9d/model_state/io/safetensors.h"

#include <fstream>
#include <iterator>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"

#include "tests/support/io_faults.h"
#include "tests/support/python.h"

namespace d9d::safetensors_test {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kOracle = "tests/model_state/io/safetensors_oracle.py";

at::Tensor counting(at::IntArrayRef shape, at::ScalarType dtype = at::kFloat) {
  return at::arange(c10::multiply_integers(shape), at::kFloat).reshape(shape).to(dtype);
}

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The tensors of the oracle's EXAMPLES.
std::vector<TensorSource> examples() {
  std::vector<TensorSource> tensors = {tensor_source("scalar \"quoted\" é", at::scalar_tensor(3.5, at::kFloat)),
                                       tensor_source("empty", at::empty({0, 4}))};
  const std::pair<const char*, at::ScalarType> dtypes[] = {
      {"bool", at::kBool},
      {"uint8", at::kByte},
      {"int8", at::kChar},
      {"int16", at::kShort},
      {"uint16", at::kUInt16},
      {"int32", at::kInt},
      {"uint32", at::kUInt32},
      {"int64", at::kLong},
      {"uint64", at::kUInt64},
      {"float16", at::kHalf},
      {"bfloat16", at::kBFloat16},
      {"float32", at::kFloat},
      {"float64", at::kDouble},
      {"complex64", at::kComplexFloat},
      {"float8_e4m3fn", at::kFloat8_e4m3fn},
      {"float8_e5m2", at::kFloat8_e5m2},
      {"float8_e8m0fnu", at::kFloat8_e8m0fnu},
      {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
      {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
  };
  for (const auto& [name, dtype] : dtypes) {
    const at::Tensor values = counting({2, 3}, at::kFloat);
    tensors.push_back(
        tensor_source(std::string("a.") + name, (dtype == at::kBool ? values.remainder(2) : values).to(dtype)));
  }
  return tensors;
}

TEST(Safetensors, Of_every_dtype_are_read_by_the_Python_package) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  write_safetensors(path, examples());
  test::run_python(kOracle, {"check", path});
}

TEST(Safetensors, Of_every_dtype_are_read_as_the_Python_package_wrote_them) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  test::run_python(kOracle, {"write", path});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}}));
  const std::vector<TensorSource> expected = examples();
  ASSERT_EQ(file.entries().size(), expected.size());
  for (const TensorSource& source : expected) {
    const at::Tensor tensor = file.tensor(source.name), reference = source.read();
    EXPECT_EQ(tensor.scalar_type(), source.dtype) << source.name;
    ASSERT_EQ(tensor.sizes(), reference.sizes()) << source.name;
    const std::size_t size = reference.nbytes();
    EXPECT_TRUE(size == 0 || std::memcmp(tensor.const_data_ptr(), reference.const_data_ptr(), size) == 0)
        << source.name;
  }
}

TEST(Safetensors, Are_written_byte_for_byte_as_by_the_Python_package) {
  const fs::path directory = test::fresh_directory("d");
  write_safetensors(directory / "ours", examples());
  test::run_python(kOracle, {"rewrite", directory / "ours", directory / "theirs"});
  EXPECT_EQ(content_of(directory / "ours"), content_of(directory / "theirs"));
}

TEST(Safetensors, Of_nothing_round_trip) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  write_safetensors(path, {}, {});
  const SafetensorsFile file(path);
  EXPECT_TRUE(file.entries().empty());
  EXPECT_TRUE(file.metadata().empty());
}

TEST(Safetensors, Write_transposed_expanded_conjugated_and_shared_tensors_by_value) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  const at::Tensor base = counting({3, 4});
  const at::Tensor complex = at::complex(base, base + 1);
  const std::map<std::string, at::Tensor> tensors = {{"base", base},
                                                     {"transposed", base.t()},
                                                     {"expanded", base.select(0, 1).expand({5, 4})},
                                                     {"strided", base.slice(1, 1, 4, 2)},
                                                     {"same_again", base},
                                                     {"conjugated", complex.conj()}};
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) sources.push_back(tensor_source(name, tensor));
  write_safetensors(path, sources);
  const SafetensorsFile file(path);
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(file.tensor(name), tensor.resolve_conj())) << name;
}

TEST(Safetensors, Are_written_with_one_tensor_in_memory_at_a_time) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  int alive = 0, most_alive = 0;
  std::vector<TensorSource> sources;
  for (int index = 0; index < 5; ++index) {
    sources.push_back({.name = std::to_string(index), .dtype = at::kFloat, .shape = {16}, .read = [&] {
                         most_alive = std::max(most_alive, ++alive);
                         auto* memory = new float[16]{};
                         return at::from_blob(memory, {16}, [&alive, memory](void*) {
                           delete[] memory;
                           --alive;
                         });
                       }});
  }
  write_safetensors(path, sources);
  EXPECT_EQ(most_alive, 1);
  EXPECT_EQ(alive, 0);
}

TEST(Safetensors, Give_views_that_outlive_the_file_object) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  write_safetensors(path, {tensor_source("a", counting({1000}))});
  const at::Tensor tensor = SafetensorsFile(path).tensor("a");
  EXPECT_TRUE(at::equal(tensor, counting({1000})));
}

TEST(Safetensors, Give_views_without_a_copy_that_never_write_to_the_file) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  write_safetensors(path, {tensor_source("a", counting({8}))});
  const SafetensorsFile file(path);
  EXPECT_EQ(file.tensor("a").data_ptr(), file.tensor("a").data_ptr());
  file.tensor("a").zero_();
  EXPECT_TRUE(at::equal(SafetensorsFile(path).tensor("a"), counting({8})));
}

TEST(Safetensors, Give_aligned_tensors_from_data_that_is_not) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  const std::string json = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}} )";
  ASSERT_NE((json.size()) % 4, 0);
  const float value = 2.5;
  write_file_atomically(path, std::string{static_cast<char>(json.size()), 0, 0, 0, 0, 0, 0, 0} + json +
                                  std::string(reinterpret_cast<const char*>(&value), 4));
  const at::Tensor tensor = SafetensorsFile(path).tensor("a");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 4, 0);
  EXPECT_EQ(tensor.item<float>(), 2.5);
}

TEST(Safetensors, Name_file_and_tensor_when_a_tensor_is_missing) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  write_safetensors(path, {tensor_source("a", counting({2}))});
  EXPECT_THAT(test::message_of<StateError>([&] { (void)SafetensorsFile(path).tensor("b"); }),
              AllOf(HasSubstr("'b'"), HasSubstr(path.string())));
}

TEST(Safetensors, Refuse_two_tensors_of_one_name) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  const TensorSource source = tensor_source("twin", counting({2}));
  EXPECT_THAT(test::message_of<StateError>([&] { write_safetensors(path, {source, source}); }), HasSubstr("'twin'"));
}

TEST(Safetensors, Refuse_a_dtype_that_the_format_lacks) {
  const fs::path path = test::fresh_directory("d") / "a.safetensors";
  const TensorSource source = tensor_source("z", at::zeros({2}, at::kComplexDouble));
  EXPECT_THAT(test::message_of<StateError>([&] { write_safetensors(path, {source}); }),
              AllOf(HasSubstr("'z'"), HasSubstr("ComplexDouble")));
}

TEST(Safetensors, Refuse_a_source_that_breaks_its_promise_and_leave_no_file) {
  const fs::path directory = test::fresh_directory("d");
  const TensorSource liar = {.name = "liar", .dtype = at::kFloat, .shape = {3}, .read = [] { return counting({2}); }};
  EXPECT_THAT(test::message_of<StateError>([&] { write_safetensors(directory / "a.safetensors", {liar}); }),
              AllOf(HasSubstr("'liar'"), HasSubstr("[3]"), HasSubstr("[2]")));
  EXPECT_TRUE(fs::is_empty(directory));
}

TEST(Safetensors, Leave_no_file_on_a_full_disk) {
  const fs::path directory = test::fresh_directory("d");
  const bool ran = test::run_on_small_disk(directory, [&] {
    EXPECT_THAT(test::message_of<IoError>(
                    [&] { write_safetensors(directory / "a.safetensors", {tensor_source("a", counting({100'000}))}); }),
                AllOf(HasSubstr("a.safetensors"), HasSubstr("No space left on device")));
    EXPECT_TRUE(fs::is_empty(directory));
  });
  if (!ran) GTEST_SKIP() << "mounting is not allowed here";
}

}  // namespace
}  // namespace d9d::safetensors_test
