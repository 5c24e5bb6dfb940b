#include "d9d/model_state/io/box_reader.h"

#include <fstream>
#include <random>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/check.h"
#include "d9d/core/dtensor/held_parts.h"

#include "tests/support/io_faults.h"

namespace d9d::box_reader_test {
namespace {
namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A file with the tensor's bytes behind `offset` others.
StoredTensor write(const fs::path& path, const at::Tensor& tensor, std::int64_t offset) {
  std::ofstream file(path, std::ios::binary);
  file << std::string(static_cast<std::size_t>(offset), 'x');
  file.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
  return {.path = path.string(), .offset = offset, .dtype = tensor.scalar_type(), .shape = tensor.sizes().vec()};
}

at::Tensor box_of(const at::Tensor& tensor, const LocalBox& box) {
  return view_of(tensor, whole_box(tensor.sizes().vec()), box);
}

TEST(BoxReader, Reads_any_boxes_into_any_strides_and_dtypes) {
  const fs::path folder = test::fresh_directory("d");
  EXPECT_TRUE(rc::check([&](std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto draw = [&](std::int64_t first, std::int64_t last) {
      return std::uniform_int_distribution<std::int64_t>(first, last)(random);
    };
    std::vector<at::Tensor> wholes;
    std::vector<BoxRead> reads;
    for (std::int64_t i = draw(1, 4); i > 0; --i) {
      std::vector<std::int64_t> shape;
      for (std::int64_t d = draw(0, 3); d > 0; --d) shape.push_back(draw(1, d == 1 ? 3000 : 9));
      const at::ScalarType dtype = draw(0, 1) == 0 ? at::kFloat : at::kBFloat16;
      const at::Tensor whole = at::arange(c10::multiply_integers(shape), at::kFloat).sin().to(dtype).reshape(shape);
      const StoredTensor stored = write(folder / std::to_string(wholes.size()), whole, draw(0, 20));
      LocalBox box = whole_box(shape);
      for (std::size_t d = 0; d < shape.size(); ++d) {
        box.start[d] = draw(0, shape[d]);
        box.sizes[d] = draw(0, shape[d] - box.start[d]);
      }
      at::Tensor into = at::full(box.sizes, -1, draw(0, 1) == 0 ? dtype : at::kDouble);
      if (into.dim() > 1 && draw(0, 1) == 0) into = into.transpose(0, 1).contiguous().transpose(0, 1);
      reads.push_back({.from = stored, .box = box, .into = into});
      wholes.push_back(whole);
    }
    (void)read_boxes(reads, {.num_threads = static_cast<int>(draw(1, 3))});
    for (std::size_t i = 0; i < reads.size(); ++i) {
      RC_ASSERT(at::equal(reads[i].into, box_of(wholes[i], reads[i].box).to(reads[i].into.scalar_type())));
    }
  }));
}

TEST(BoxReader, Reads_values_into_conjugated_and_negated_views) {
  const fs::path folder = test::fresh_directory("d");
  const at::Tensor real = at::arange(5, at::kDouble), z = at::complex(real, real + 1);
  const at::Tensor conjugate = at::zeros_like(z).conj(), negative = at::imag(at::zeros_like(z).conj());
  ASSERT_TRUE(conjugate.is_conj() && negative.is_neg());
  const LocalBox whole = whole_box({5});
  (void)read_boxes({{.from = write(folder / "z", z, 0), .box = whole, .into = conjugate},
                    {.from = write(folder / "real", real, 0), .box = whole, .into = negative}});
  EXPECT_TRUE(at::equal(conjugate.resolve_conj(), z));
  EXPECT_TRUE(at::equal(negative.resolve_neg(), real));
}

TEST(BoxReader, Reads_large_tensors_in_pieces_on_several_threads) {
  const fs::path folder = test::fresh_directory("d");
  const at::Tensor whole = at::randn({3, 2048, 1536});  // 36 MiB
  const StoredTensor stored = write(folder / "f", whole, 24);
  const at::Tensor into = at::empty_like(whole);
  const at::Tensor transposed = at::empty({3, 1536, 2048});
  const BytesRead bytes =
      read_boxes({{.from = stored, .box = whole_box(stored.shape), .into = into},
                  {.from = stored, .box = whole_box(stored.shape), .into = transposed.transpose(1, 2)}},
                 {.num_threads = 3});
  EXPECT_TRUE(at::equal(into, whole));
  EXPECT_TRUE(at::equal(transposed.transpose(1, 2), whole));
  EXPECT_EQ(bytes.wanted, 2 * static_cast<std::int64_t>(whole.nbytes()));
}

TEST(BoxReader, Reads_of_rows_what_is_wanted_and_of_columns_at_most_the_rows) {
  const fs::path folder = test::fresh_directory("d");
  const at::Tensor whole = at::randn({256, 32768});  // rows of 128 KiB
  const StoredTensor stored = write(folder / "f", whole, 0);
  const auto read = [&](const LocalBox& box) {
    const at::Tensor into = at::empty(box.sizes);
    const BytesRead bytes = read_boxes({{.from = stored, .box = box, .into = into}});
    EXPECT_TRUE(at::equal(into, box_of(whole, box)));
    return bytes;
  };
  EXPECT_EQ(read({.start = {64, 0}, .sizes = {64, 32768}}).read, whole.nbytes() / 4);
  EXPECT_EQ(read({.start = {0, 8192}, .sizes = {256, 8192}}).read, whole.nbytes() / 4);  // gaps of 96 KiB
  const BytesRead half = read({.start = {0, 0}, .sizes = {256, 16384}});                 // gaps of 64 KiB are read over
  EXPECT_EQ(half.wanted, whole.nbytes() / 2);
  EXPECT_LE(half.read, static_cast<std::int64_t>(whole.nbytes()));
}

TEST(BoxReader, Reads_close_tensors_together_and_far_ones_apart) {
  const fs::path folder = test::fresh_directory("d");
  const at::Tensor whole = at::randn({16384});  // 64 KiB
  const StoredTensor stored = write(folder / "f", whole, 0);
  const at::Tensor a = at::empty({16}), b = at::empty({16});
  const auto read = [&](std::int64_t second) {
    return read_boxes({{.from = stored, .box = {.start = {second}, .sizes = {16}}, .into = b},
                       {.from = stored, .box = {.start = {0}, .sizes = {16}}, .into = a}})
        .read;
  };
  EXPECT_EQ(read(1016), 4 * (1016 + 16));  // 4000 bytes between
  EXPECT_EQ(read(8192), 4 * 32);
  EXPECT_TRUE(at::equal(b, whole.narrow(0, 8192, 16)));
}

TEST(BoxReader, Names_the_file_that_is_gone_or_too_short) {
  const fs::path folder = test::fresh_directory("d");
  StoredTensor stored = write(folder / "f", at::ones({8}), 0);
  stored.shape = {100};
  const auto read = [&] {
    (void)read_boxes({{.from = stored, .box = whole_box(stored.shape), .into = at::empty(stored.shape)}});
  };
  EXPECT_THAT(test::message_of<IoError>(read), AllOf(HasSubstr((folder / "f").string()), HasSubstr("end of the file")));
  fs::remove(folder / "f");
  EXPECT_THAT(test::message_of<IoError>(read), HasSubstr((folder / "f").string()));
}

}  // namespace
}  // namespace d9d::box_reader_test
