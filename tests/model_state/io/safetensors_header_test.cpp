#include "d9d/model_state/io/safetensors_header.h"

#include <cstring>
#include <random>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"

#include "tests/support/io_faults.h"

namespace d9d::safetensors_header_test {
namespace {
using ::testing::AllOf;
using ::testing::HasSubstr;

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(std::as_bytes(std::span(file)), "dir/model.safetensors");
}

// A file of the length, the header text, and the given number of data bytes.
std::string file_of(const std::string& json, std::size_t data_size) {
  const std::uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + json + std::string(data_size, '\1');
}

// The error for such a file; it always names the file.
std::string complaint(const std::string& json, std::size_t data_size) {
  const std::string message = test::message_of<IoError>([&] { (void)parse(file_of(json, data_size)); });
  EXPECT_THAT(message, HasSubstr("dir/model.safetensors"));
  return message;
}

constexpr const char* kGood =
    R"({"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},)"
    R"("b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}})";

TEST(SafetensorsHeader, Tells_where_each_tensor_lies) {
  const SafetensorsHeader header = parse(file_of(kGood, 16));
  EXPECT_EQ(header.metadata.at("format"), "pt");
  const SafetensorsEntry& entry = header.entries.at("b");
  EXPECT_EQ(entry.dtype, at::kFloat);
  EXPECT_EQ(entry.shape, std::vector<std::int64_t>{});
  EXPECT_EQ(entry.offset, 8 + std::strlen(kGood) + 12);
  EXPECT_EQ(entry.size, 4);
}

TEST(SafetensorsHeader, Rejects_a_file_shorter_than_the_length_field) {
  EXPECT_THAT(test::message_of<IoError>([] { (void)parse("1234567"); }), HasSubstr("got 7"));
}

TEST(SafetensorsHeader, Rejects_a_length_beyond_the_file) {
  std::string file = file_of(kGood, 0);
  file.resize(file.size() - 20);
  EXPECT_THAT(test::message_of<IoError>([&] { (void)parse(file); }), HasSubstr("header within the file"));
}

TEST(SafetensorsHeader, Rejects_a_length_that_would_overflow) {
  std::string file = file_of(kGood, 16);
  std::memset(file.data(), 0xff, 8);
  EXPECT_THROW((void)parse(file), IoError);
}

TEST(SafetensorsHeader, Rejects_truncated_data) {
  EXPECT_THAT(complaint(kGood, 15), AllOf(HasSubstr("'b'"), HasSubstr("15 bytes of data")));
}

TEST(SafetensorsHeader, Rejects_bytes_after_the_data) { EXPECT_THAT(complaint(kGood, 17), HasSubstr("got 1")); }

TEST(SafetensorsHeader, Rejects_what_is_no_JSON) {
  EXPECT_THAT(complaint("{\"a\":", 0), HasSubstr("valid JSON"));
  EXPECT_THAT(complaint("", 0), HasSubstr("starts with '{'"));
  EXPECT_THAT(complaint("[]", 0), HasSubstr("starts with '{'"));
  EXPECT_THAT(complaint("{\"a\xff\":1}", 0), HasSubstr("valid JSON"));
}

TEST(SafetensorsHeader, Rejects_nesting_as_deep_as_the_header_is_long) {
  EXPECT_THAT(complaint("{\"a\":" + std::string(1'000'000, '['), 0), HasSubstr("three levels"));
}

TEST(SafetensorsHeader, Rejects_duplicate_names) {
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                        R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                        1),
              AllOf(HasSubstr("\"a\""), HasSubstr("twice")));
}

TEST(SafetensorsHeader, Rejects_overlapping_tensors) {
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                        R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                        3),
              AllOf(HasSubstr("'b'"), HasSubstr("overlap")));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                        R"("b":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}})",
                        2),
              HasSubstr("overlap"));
}

TEST(SafetensorsHeader, Rejects_holes_between_tensors) {
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3),
              AllOf(HasSubstr("'a'"), HasSubstr("holes")));
}

TEST(SafetensorsHeader, Rejects_offsets_that_run_backwards_or_are_no_pair) {
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[1,0]}})", 1), HasSubstr("[1,0]"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}})", 0), HasSubstr("data_offsets"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0.0,0]}})", 0), HasSubstr("data_offsets"));
}

TEST(SafetensorsHeader, Rejects_byte_counts_that_do_not_fit_dtype_and_shape) {
  EXPECT_THAT(complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4),
              AllOf(HasSubstr("8 bytes for 'a'"), HasSubstr("got 4")));
}

TEST(SafetensorsHeader, Rejects_shapes_whose_product_overflows) {
  EXPECT_THAT(complaint(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
              HasSubstr("63 bits"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[4611686018427387904,4,0],"data_offsets":[0,0]}})", 0),
              HasSubstr("63 bits"));
}

TEST(SafetensorsHeader, Rejects_negative_fractional_and_huge_sizes) {
  for (const char* shape : {"-1", "1.5", "\"2\"", "18446744073709551615", "1e400", "null"}) {
    EXPECT_THAT(complaint(cat(R"({"a":{"dtype":"U8","shape":[)", shape, R"(],"data_offsets":[0,1]}})"), 1),
                ::testing::AnyOf(HasSubstr("sizes >= 0"), HasSubstr("valid JSON")));
  }
}

// Who reads the tensor refuses it: huggingface_directory_test.cpp.
TEST(SafetensorsHeader, Keeps_the_names_of_unknown_dtypes) {
  const SafetensorsHeader header = parse(file_of(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", 2));
  EXPECT_EQ(header.entries.at("a").dtype, c10::ScalarType::Undefined);
  EXPECT_EQ(header.entries.at("a").unknown_dtype, "F4");
  EXPECT_EQ(header.entries.at("a").size, 2);
  EXPECT_THAT(complaint(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,3]}})", 2), HasSubstr("2 bytes of data"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,1]}})", 1), HasSubstr("dtype"));
}

TEST(SafetensorsHeader, Rejects_entries_with_other_than_the_three_fields) {
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[1]}})", 1), HasSubstr("'a'"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"scale":2}})", 1), HasSubstr("'a'"));
  EXPECT_THAT(complaint(R"({"a":7})", 0), HasSubstr("'a'"));
}

TEST(SafetensorsHeader, Rejects_metadata_that_is_no_map_of_text) {
  EXPECT_THAT(complaint(R"({"__metadata__":{"step":3}})", 0), HasSubstr("step"));
  EXPECT_THAT(complaint(R"({"__metadata__":"pt"})", 0), HasSubstr("__metadata__"));
}

// A damaged file must either parse into entries that lie within it, or throw IoError. Everything else fails or crashes.
void expect_safe(const std::string& file) {
  try {
    std::size_t covered = 0;
    for (const auto& [name, entry] : parse(file).entries) {
      RC_ASSERT(entry.offset <= file.size() && entry.size <= file.size() - entry.offset);
      covered += entry.size;
    }
    RC_ASSERT(covered <= file.size());
  } catch (const IoError&) {
  }
}

TEST(SafetensorsHeader, Survives_any_bytes) {
  EXPECT_TRUE(
      rc::check([](const std::string& json, unsigned char data_size) { expect_safe(file_of(json, data_size)); }));
  EXPECT_TRUE(rc::check([](const std::string& file) { expect_safe(file); }));
}

std::string mutated(std::string file, std::mt19937& random) {
  static const std::string tokens[] = {"-",     "0",    "9",    "99999999999999999999",
                                       "1e9",   "\"",   "{",    "}",
                                       "[",     "]",    ",",    ":",
                                       "F64",   "null", "\\u0", "__metadata__",
                                       "[2,3]", "true", "a",    std::string("\0", 1)};
  for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
    const std::size_t position = random() % file.size();
    const std::string& token = tokens[random() % std::size(tokens)];
    switch (random() % 4) {
      case 0:
        file[position] = static_cast<char>(random());
        break;
      case 1:
        file.insert(position, token);
        break;
      case 2:
        file.erase(position, 1 + random() % 6);
        break;
      default:
        file.replace(position, 1, token);
    }
  }
  if (random() % 2 == 0 && file.size() > 8) {  // keep the length field plausible, so that the JSON is parsed
    const std::uint64_t length = std::min<std::uint64_t>(file.size() - 8, std::strlen(kGood) + random() % 8);
    std::memcpy(file.data(), &length, 8);
  }
  return file;
}

TEST(SafetensorsHeader, Survives_mutations_of_a_good_file) {
  EXPECT_TRUE(rc::check([](std::uint32_t seed) {
    std::mt19937 random(seed);
    for (int repeat = 0; repeat < 100; ++repeat) expect_safe(mutated(file_of(kGood, 16), random));
  }));
}

TEST(SafetensorsHeader, Of_any_shapes_and_dtypes_round_trips) {
  constexpr at::ScalarType kDtypes[] = {at::kBool, at::kFloat8_e4m3fn, at::kBFloat16, at::kFloat, at::kLong};
  EXPECT_TRUE(rc::check([&](const std::map<std::string, std::vector<unsigned char>>& shapes, unsigned dtype_seed) {
    std::vector<TensorSource> tensors;
    std::size_t data_size = 0;
    for (const auto& [bytes, shape] : shapes) {
      std::vector<std::int64_t> sizes;
      for (std::size_t dim = 0; dim < std::min<std::size_t>(shape.size(), 3); ++dim) sizes.push_back(shape[dim] % 5);
      std::string name = "n";
      for (const unsigned char byte : bytes) name += static_cast<char>(byte % 128);  // any ASCII, quotes and zeros too
      name += std::to_string(tensors.size());
      tensors.push_back({.name = name, .dtype = kDtypes[dtype_seed++ % 5], .shape = sizes, .read = {}});
      data_size += static_cast<std::size_t>(num_bytes(tensors.back()));
    }
    const std::string header = format_safetensors_header(in_safetensors_order(tensors), {{"format", "pt"}});
    RC_ASSERT(header.size() % 8 == 0u);
    const SafetensorsHeader parsed = parse(header + std::string(data_size, '\0'));
    RC_ASSERT(parsed.entries.size() == tensors.size());
    for (const TensorSource& tensor : tensors) {
      const SafetensorsEntry& entry = parsed.entries.at(tensor.name);
      RC_ASSERT(entry.dtype == tensor.dtype);
      RC_ASSERT(entry.shape == tensor.shape);
      RC_ASSERT(entry.offset % c10::elementSize(entry.dtype) == 0u);
    }
  }));
}

}  // namespace
}  // namespace d9d::safetensors_header_test
