#include "d9d/model_state/io/checked_reads.h"

#include <fstream>
#include <random>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "d9d/base/rounding.h"
#include "d9d/core/dtensor/held_parts.h"

#include "tests/support/io_faults.h"

namespace d9d::checked_reads_test {
namespace {

namespace fs = std::filesystem;

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Files with the tensor's bytes and with its checksums.
StoredTensor write(const fs::path& path, const at::Tensor& tensor) {
  const auto put = [](const fs::path& file, std::span<const std::byte> bytes) {
    std::ofstream(file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  };
  const auto sums = block_checksums(bytes_of(tensor), checksum_block(std::ssize(bytes_of(tensor))));
  const fs::path beside = path.string() + ".sums";
  put(path, bytes_of(tensor));
  put(beside, std::as_bytes(std::span(sums)));
  return {
      .path = path.string(),
      .offset = 0,
      .dtype = tensor.scalar_type(),
      .shape = tensor.sizes().vec(),
      .checksums = std::make_shared<BlockChecksums>(BlockChecksums{
          .tensor = "w", .path = beside.string(), .offset = 0, .checksum = checksum(std::as_bytes(std::span(sums)))})};
}

TEST(CheckedReads, Of_a_range_have_it_the_rest_of_two_blocks_and_the_checksums) {
  const fs::path folder = test::fresh_directory("d");
  EXPECT_TRUE(rc::check([&](std::uint32_t seed) {
    std::mt19937 random(seed);
    const auto draw = [&](std::int64_t first, std::int64_t last) {
      return std::uniform_int_distribution<std::int64_t>(first, last)(random);
    };
    const std::int64_t numel = std::int64_t{1} << draw(0, 22), size = numel + draw(0, numel - 1);
    const at::Tensor whole = at::arange(size, at::kFloat);
    const StoredTensor stored = write(folder / "whole", whole);
    const std::int64_t begin = draw(0, size - 1), count = draw(1, size - begin);
    const at::Tensor into = at::full({count}, -1, at::kFloat);
    const BytesRead bytes = read_boxes({{.from = stored, .box = {.start = {begin}, .sizes = {count}}, .into = into}});
    const std::int64_t block = checksum_block(4 * size);
    RC_ASSERT(at::equal(into, whole.narrow(0, begin, count)));
    RC_ASSERT(bytes.wanted == 4 * count);
    RC_ASSERT(bytes.read < 4 * count + 2 * block + 8 * divide_up(4 * size, block));
  }));
}

TEST(CheckedReads, Of_columns_leave_out_what_lies_between_distant_rows) {
  const at::Tensor whole = at::arange(std::int64_t{1} << 20, at::kFloat).view({32, 32768});  // rows of 128 KiB
  const StoredTensor stored = write(test::fresh_directory("d") / "whole", whole);
  for (const std::int64_t columns : {1024, 8192, 20000}) {
    const LocalBox box{.start = {0, 4096}, .sizes = {32, columns}};
    const at::Tensor into = at::full(box.sizes, -1, at::kFloat);
    const BytesRead bytes = read_boxes({{.from = stored, .box = box, .into = into}});
    EXPECT_TRUE(at::equal(into, view_of(whole, whole_box({32, 32768}), box)));
    const bool are_distant = 4 * (32768 - columns) > kGapOfRows;
    const std::int64_t row = round_up(4 * columns, 4096), sums = 8 * 1024;
    EXPECT_EQ(bytes.read, (are_distant ? 32 * row : 31 * 4 * 32768 + row) + sums) << columns;
  }
}

}  // namespace
}  // namespace d9d::checked_reads_test
