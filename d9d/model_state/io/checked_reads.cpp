#include "d9d/model_state/io/checked_reads.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/base/rounding.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/model_state/io/thread_queue.h"

namespace d9d {
namespace {

constexpr std::int64_t kMostOfRun = std::int64_t{8} << 20;  // bytes of one request of several blocks
constexpr const char* kRemedy = ". Remove the folder; a job continues from the checkpoint before.";

// One stored tensor, and the reads from it.
struct Wanted {
  const StoredTensor* from;
  std::vector<const BoxRead*> reads;
  std::int64_t block;               // bytes
  std::vector<std::uint64_t> sums;  // of all its blocks
};

using WantedTensors = std::map<std::pair<std::string, std::int64_t>, Wanted>;  // sorted by file and offset

// Blocks of a tensor that are read by one call.
struct BlockRun {
  const Wanted* wanted;
  const InputFile* file;
  std::int64_t first, end;  // blocks
};

std::int64_t size_of_element(const StoredTensor& tensor) {
  return static_cast<std::int64_t>(c10::elementSize(tensor.dtype));
}

std::int64_t stored_bytes(const StoredTensor& tensor) {
  return c10::multiply_integers(tensor.shape) * size_of_element(tensor);
}

// Marks the blocks that a box touches. Rows that are a block and more than kGapOfRows apart are marked one by one. Dims
// before `dim` have size 1.
void mark(const Wanted& wanted, const LocalBox& box, std::size_t dim, std::vector<bool>& blocks) {
  const StoredTensor& tensor = *wanted.from;
  const std::int64_t size = size_of_element(tensor);
  const LocalBox whole = whole_box(tensor.shape);
  while (dim < box.sizes.size() && box.sizes[dim] == 1) ++dim;
  const FlatRange elements = flat_extent(whole, box);
  if (dim < box.sizes.size()) {
    LocalBox row = box;
    row.sizes[dim] = 1;
    const std::int64_t length = flat_extent(whole, row).numel();
    const std::int64_t stride = (elements.numel() - length) / (box.sizes[dim] - 1);
    if ((stride - length) * size >= std::max(wanted.block, kGapOfRows + 1)) {
      for (std::int64_t i = 0; i < box.sizes[dim]; ++i, ++row.start[dim]) mark(wanted, row, dim + 1, blocks);
      return;
    }
  }
  for (std::int64_t i = elements.begin * size / wanted.block; i <= (elements.end * size - 1) / wanted.block; ++i) {
    blocks[static_cast<std::size_t>(i)] = true;
  }
}

void read_sums(Wanted& wanted, const InputFile& file) {
  const BlockChecksums& checksums = *wanted.from->checksums;
  const std::int64_t num_bytes = stored_bytes(*wanted.from);
  wanted.block = checksum_block(num_bytes);
  wanted.sums.resize(static_cast<std::size_t>(divide_up(num_bytes, wanted.block)));
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(wanted.sums));
  const bool are_there = checksums.offset >= 0 && checksums.offset <= file.size() - std::ssize(bytes);
  if (are_there) file.read(checksums.offset, bytes);
  D9D_CHECK(are_there && checksum(bytes) == checksums.checksum, IoError,
            "[model_state::read] expected the checksums of ", checksums.tensor, " in ", checksums.path,
            " as they were written, got others", kRemedy);
}

void read_sums(WantedTensors& tensors, const ReadOptions& options) {
  std::map<std::string, std::vector<Wanted*>> of_file;
  for (auto& [place, wanted] : tensors) of_file[wanted.from->checksums->path].push_back(&wanted);
  std::vector<std::pair<std::string, std::vector<Wanted*>>> files(of_file.begin(), of_file.end());
  work_through(files.size(), options.num_threads, [&]() -> WorkOnItem {
    return [&files](std::size_t i) {
      const InputFile file(files[i].first);
      for (Wanted* const wanted : files[i].second) read_sums(*wanted, file);
    };
  });
}

void append_requests(const Wanted& wanted, const InputFile& file, std::vector<BlockRun>& requests) {
  const std::int64_t count = std::ssize(wanted.sums);
  std::vector<bool> blocks(static_cast<std::size_t>(count));
  for (const BoxRead* const read : wanted.reads) mark(wanted, read->box, 0, blocks);
  for (std::int64_t i = 0; i < count; ++i) {
    if (!blocks[static_cast<std::size_t>(i)]) continue;
    const bool goes_on = !requests.empty() && requests.back().wanted == &wanted && requests.back().end == i &&
                         (i + 1 - requests.back().first) * wanted.block <= kMostOfRun;
    if (!goes_on) requests.push_back({.wanted = &wanted, .file = &file, .first = i, .end = i});
    requests.back().end = i + 1;
  }
}

FlatRange block_bytes(const BlockRun& request) {
  const std::int64_t block = request.wanted->block;
  return {.begin = request.first * block, .end = std::min(request.end * block, stored_bytes(*request.wanted->from))};
}

// Copies those of the given elements of a tensor that reads need.
void copy_out(const Wanted& wanted, const FlatRange& elements, std::byte* bytes) {
  std::int64_t begin = 0;
  for (const LocalBox& box : boxes_of_range(whole_box(wanted.from->shape), elements)) {
    const at::Tensor stored =
        at::from_blob(bytes + begin * size_of_element(*wanted.from), box.sizes, wanted.from->dtype);
    begin += box.numel();
    for (const BoxRead* const read : wanted.reads) {
      for (const BoxIntersection& part : intersections({box}, {read->box})) {
        at::Tensor values = view_of(stored, box, part.box);
        for (const at::ScalarType dtype : read->casts) values = values.to(dtype);
        view_of(read->into, read->box, part.box).copy_(values);
      }
    }
  }
}

void read_run(const BlockRun& request, const at::Tensor& buffer) {
  const StoredTensor& from = *request.wanted->from;
  const FlatRange range = block_bytes(request);
  const std::span<std::byte> bytes(static_cast<std::byte*>(buffer.data_ptr()), static_cast<std::size_t>(range.numel()));
  request.file->read(from.offset + range.begin, bytes);
  const auto bad = first_bad_block(bytes, request.wanted->block, request.wanted->sums, request.first);
  D9D_CHECK(!bad, IoError, "[model_state::read] expected ", from.checksums->tensor, " in ", from.path,
            " as it was written, got other bytes in block ", bad.value_or(0), kRemedy);
  const std::int64_t size = size_of_element(from);
  copy_out(*request.wanted, {.begin = range.begin / size, .end = range.end / size}, bytes.data());
}

}  // namespace

BytesRead read_checked_boxes(const std::vector<BoxRead>& reads, const ReadOptions& options) {
  BytesRead bytes;
  WantedTensors tensors;
  std::map<std::string, InputFile> files;
  bool is_pinned = false;
  for (const BoxRead& read : reads) {
    files.try_emplace(read.from.path, read.from.path);
    Wanted& wanted = tensors[{read.from.path, read.from.offset}];
    wanted.from = &read.from;
    wanted.reads.push_back(&read);
    bytes.wanted += read.box.numel() * size_of_element(read.from);
    is_pinned = is_pinned || read.into.is_cuda();
  }
  read_sums(tensors, options);
  std::vector<BlockRun> requests;
  for (const auto& [place, wanted] : tensors) {
    append_requests(wanted, files.at(place.first), requests);
    bytes.read += static_cast<std::int64_t>(std::span(wanted.sums).size_bytes());
  }
  for (const BlockRun& request : requests) bytes.read += block_bytes(request).numel();
  const auto buffers = at::TensorOptions().dtype(at::kByte).pinned_memory(is_pinned);
  work_through(requests.size(), options.num_threads, [&]() -> WorkOnItem {
    return [&requests, buffer = at::empty({kMostOfRun}, buffers)](std::size_t i) { read_run(requests[i], buffer); };
  });
  return bytes;
}

}  // namespace d9d
