// Reads from stored tensors that have checksums: reads the checksums, then whole blocks, and verifies each block before
// any of its bytes are copied. Called by read_boxes().
#pragma once

#include <vector>

#include "d9d/model_state/io/box_reader.h"

namespace d9d {

// Local, blocking. All reads are from tensors with checksums. Each touched block is read once, however many boxes lie
// in it. Throws as read_boxes().
BytesRead read_checked_boxes(const std::vector<BoxRead>& reads, const ReadOptions& options);

}  // namespace d9d
