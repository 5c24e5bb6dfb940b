#include "d9d/model_state/io/box_reader.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/model_state/io/checked_reads.h"
#include "d9d/model_state/io/thread_queue.h"

namespace d9d {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{8} << 20;  // of one request
constexpr std::int64_t kMostConverted = 2 << 20;            // of one that is converted or reordered, on several threads
constexpr std::int64_t kGapOfBoxes = 4 << 10;
constexpr std::int64_t kAlone = 1 << 20;  // a piece of this size or more has a request of its own

// A part of a BoxRead that is read by one call.
struct Piece {
  const BoxRead* read;
  LocalBox box;
  FlatRange bytes;  // of the file, from the first to the last needed
  [[nodiscard]] at::Tensor target() const { return view_of(read->into, read->box, box); }
};

// Bytes of a file that are read by one call.
struct Request {
  const InputFile* file;
  FlatRange bytes;
  std::vector<Piece> pieces;
};

std::int64_t element_size(const BoxRead& read) { return static_cast<std::int64_t>(c10::elementSize(read.from.dtype)); }

// Strides of the stored tensor, in elements.
std::vector<std::int64_t> strides_of(const std::vector<std::int64_t>& shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

FlatRange bytes_of(const BoxRead& read, const LocalBox& box) {
  const FlatRange elements = flat_extent(whole_box(read.from.shape), box);
  return {.begin = read.from.offset + elements.begin * element_size(read),
          .end = read.from.offset + elements.end * element_size(read)};
}

LocalBox rows_of(const LocalBox& box, std::size_t dim, std::int64_t begin, std::int64_t count) {
  LocalBox rows = box;
  rows.start[dim] += begin;
  rows.sizes[dim] = count;
  return rows;
}

std::int64_t most_bytes(const BoxRead& read) {
  const bool is_plain = read.into.scalar_type() == read.from.dtype && read.casts.empty() && read.into.is_contiguous();
  return is_plain || !read.into.is_cpu() ? kMostBytes : kMostConverted;
}

// Cuts a box into pieces of at most most_bytes() without gaps of more than kGapOfRows. Dims before `dim` have size 1.
void cut(const BoxRead& read, const LocalBox& box, std::size_t dim, std::vector<Piece>& pieces) {
  while (dim < box.sizes.size() && box.sizes[dim] == 1) ++dim;
  const FlatRange bytes = bytes_of(read, box);
  if (dim == box.sizes.size()) {
    pieces.push_back({.read = &read, .box = box, .bytes = bytes});
    return;
  }
  const std::int64_t most = most_bytes(read);
  const std::int64_t row = bytes_of(read, rows_of(box, dim, 0, 1)).numel();
  const std::int64_t stride = (bytes.numel() - row) / (box.sizes[dim] - 1);
  if (stride - row > kGapOfRows || row > most) {
    for (std::int64_t i = 0; i < box.sizes[dim]; ++i) cut(read, rows_of(box, dim, i, 1), dim + 1, pieces);
    return;
  }
  const std::int64_t num_rows = std::max<std::int64_t>(1, (most - row) / stride + 1);
  for (std::int64_t begin = 0; begin < box.sizes[dim]; begin += num_rows) {
    const LocalBox rows = rows_of(box, dim, begin, std::min(num_rows, box.sizes[dim] - begin));
    pieces.push_back({.read = &read, .box = rows, .bytes = bytes_of(read, rows)});
  }
}

// Sorts the pieces by position in the file, and joins those that are close into one request.
std::vector<Request> requests_of(std::vector<Piece> pieces, const std::map<std::string, InputFile>& files) {
  std::ranges::stable_sort(pieces, [](const Piece& a, const Piece& b) {
    const int paths = a.read->from.path.compare(b.read->from.path);
    return paths != 0 ? paths < 0 : a.bytes.begin < b.bytes.begin;
  });
  std::vector<Request> requests;
  for (Piece& piece : pieces) {
    const InputFile* const file = &files.at(piece.read->from.path);
    if (!requests.empty()) {
      Request& last = requests.back();
      const std::int64_t end = std::max(last.bytes.end, piece.bytes.end);
      const bool is_alone =
          std::max(last.bytes.numel(), piece.bytes.numel()) >= kAlone && last.bytes.end <= piece.bytes.begin;
      if (last.file == file && !is_alone && piece.bytes.begin - last.bytes.end <= kGapOfBoxes &&
          end - last.bytes.begin <= kMostBytes) {
        last.bytes.end = end;
        last.pieces.push_back(std::move(piece));
        continue;
      }
    }
    requests.push_back({.file = file, .bytes = piece.bytes, .pieces = {}});
    requests.back().pieces.push_back(std::move(piece));
  }
  return requests;
}

// Whether the bytes in the file are exactly those of the target's memory, so that they can be read into it directly.
bool is_direct(const Piece& piece, const at::Tensor& target) {
  return target.is_cpu() && target.scalar_type() == piece.read->from.dtype && piece.read->casts.empty() &&
         target.is_contiguous() && !target.is_conj() && !target.is_neg() &&
         piece.bytes.numel() == static_cast<std::int64_t>(target.nbytes());
}

void copy_piece(const Piece& piece, const at::Tensor& target, std::byte* bytes) {
  const auto size = static_cast<std::size_t>(element_size(*piece.read));
  at::Tensor aligned;  // for a header of odd length, or several dtypes in one request
  if (reinterpret_cast<std::uintptr_t>(bytes) % size != 0) {
    aligned = at::empty({piece.bytes.numel()}, at::kByte);
    std::memcpy(aligned.data_ptr(), bytes, static_cast<std::size_t>(piece.bytes.numel()));
    bytes = static_cast<std::byte*>(aligned.data_ptr());
  }
  at::Tensor values = at::from_blob(bytes, piece.box.sizes, strides_of(piece.read->from.shape), piece.read->from.dtype);
  for (const at::ScalarType dtype : piece.read->casts) values = values.to(dtype);
  target.copy_(values);
}

// A buffer for the requests of one thread.
class ReadBuffer {
 public:
  // Copies to a GPU are several times faster from pinned memory.
  explicit ReadBuffer(bool is_pinned) : options_(at::TensorOptions().dtype(at::kByte).pinned_memory(is_pinned)) {}
  // Memory for these bytes of a file, with the same alignment as in the file.
  std::byte* at(const FlatRange& bytes) {
    const std::int64_t shift = bytes.begin % kAlignment;
    if (!memory_.defined() || memory_.numel() < bytes.numel() + kAlignment) {
      memory_ = at::empty({std::max(bytes.numel(), kMostConverted) + kAlignment}, options_);
    }
    return static_cast<std::byte*>(memory_.data_ptr()) + shift;
  }

 private:
  static constexpr std::int64_t kAlignment = 64;
  at::TensorOptions options_;
  at::Tensor memory_;
};

void serve(const Request& request, ReadBuffer& buffer) {
  if (request.pieces.size() == 1) {
    const at::Tensor target = request.pieces[0].target();
    if (is_direct(request.pieces[0], target)) {
      request.file->read(request.bytes.begin, {static_cast<std::byte*>(target.data_ptr()), target.nbytes()});
      return;
    }
  }
  std::byte* const bytes = buffer.at(request.bytes);
  request.file->read(request.bytes.begin, {bytes, static_cast<std::size_t>(request.bytes.numel())});
  for (const Piece& piece : request.pieces) {
    copy_piece(piece, piece.target(), bytes + (piece.bytes.begin - request.bytes.begin));
  }
}

}  // namespace

BytesRead read_boxes(const std::vector<BoxRead>& reads, const ReadOptions& options) {
  BytesRead bytes;
  std::map<std::string, InputFile> files;
  std::vector<Piece> pieces;
  bool is_pinned = false;
  std::vector<BoxRead> checked;
  for (const BoxRead& read : reads) {
    D9D_ASSERT(read.into.sizes() == read.box.sizes, "a box is read into a tensor of another shape");
    if (read.box.numel() == 0) continue;
    if (read.from.checksums != nullptr) {
      checked.push_back(read);
      continue;
    }
    files.try_emplace(read.from.path, read.from.path);
    cut(read, read.box, 0, pieces);
    bytes.wanted += read.box.numel() * element_size(read);
    is_pinned = is_pinned || read.into.is_cuda();
  }
  const std::vector<Request> requests = requests_of(std::move(pieces), files);
  for (const Request& request : requests) bytes.read += request.bytes.numel();
  const auto most = static_cast<int>(std::min<std::int64_t>(bytes.read / kMostBytes + 1, options.num_threads));
  work_through(requests.size(), most, [&]() -> WorkOnItem {
    return [&, buffer = ReadBuffer(is_pinned)](std::size_t i) mutable { serve(requests[i], buffer); };
  });
  const BytesRead of_checked = read_checked_boxes(checked, options);
  bytes.wanted += of_checked.wanted;
  bytes.read += of_checked.read;
  return bytes;
}

}  // namespace d9d
