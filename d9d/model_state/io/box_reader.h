// Reads boxes of stored tensors into tensors: determines which bytes are needed, and reads them in the order of the
// file, in few large pieces, on several threads.
//
// Example
//   std::vector<BoxRead> reads = {{.from = stored, .box = {{0, 0}, {4, 8}}, .into = part_of_weight}};
//   const BytesRead bytes = read_boxes(std::move(reads));
//
// Pieces have up to 8 MiB; those that are converted or reordered in memory up to 2 MiB. Bytes in gaps are read too if
// another read would cost more: gaps of up to 4 KiB between boxes, and of up to 64 KiB between the rows of one box.
// Apart from these, a box that is contiguous in the file, such as rows or a flat slice, is read without an extra byte;
// for columns of a row-major matrix at most whole rows are read. For a tensor with checksums, the checksums and whole
// blocks are read (block_checksums.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"
#include "d9d/model_state/io/block_checksums.h"

namespace d9d {

inline constexpr std::int64_t kGapOfRows = std::int64_t{64} << 10;  // bytes

// Where a tensor is stored in a file, in row-major order.
struct StoredTensor {
  std::string path;
  std::int64_t offset;  // of the first byte
  at::ScalarType dtype;
  std::vector<std::int64_t> shape;
  std::shared_ptr<const BlockChecksums> checksums = nullptr;  // if set, blocks that are touched are read and compared
};

struct BoxRead {
  StoredTensor from;
  LocalBox box;                            // of the stored tensor
  at::Tensor into;                         // of the box's shape, any strides, dtype and device
  std::vector<at::ScalarType> casts = {};  // applied in order, before the conversion to the dtype of `into`
};

struct BytesRead {
  std::int64_t wanted = 0;
  std::int64_t read = 0;
};

struct ReadOptions {
  int num_threads = 4;  // at most; small reads use one
};

// Local, blocking. Throws IoError that names the file which cannot be read, ends too early, or has other bytes than its
// checksums say; some boxes are filled then.
BytesRead read_boxes(const std::vector<BoxRead>& reads, const ReadOptions& options = {});

}  // namespace d9d
