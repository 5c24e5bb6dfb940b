// Runs local work on each rank, and throws on all ranks if it fails on any.
//
// Example
//   agreed(job, [&] { write_own_file(); });            // a full disk on rank 3 throws on all ranks
//   on_first_rank(job, [&] { make_folder(); });
#pragma once

#include <functional>

#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Collective over the mesh. Calls work() on each rank. If work() throws on some ranks, these rethrow their own error,
// and the other ranks throw IoError with the text and the rank of the first failed rank.
void agreed(const DeviceMesh& mesh, const std::function<void()>& work);

// Collective over the mesh. Calls work() on the first rank only, and throws as agreed().
void on_first_rank(const DeviceMesh& mesh, const std::function<void()>& work);

}  // namespace d9d
