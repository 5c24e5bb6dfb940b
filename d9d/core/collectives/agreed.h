// Work that ranks do each for itself and that fails on all of them together.
//
// Example
//   agreed(job, [&] { write_own_file(); });            // a full disk on rank 3 throws on all ranks
//   on_first_rank(job, [&] { make_folder(); });
#pragma once

#include <functional>

#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

// Collective over the mesh. Calls work() on this rank. If it throws on some ranks, all throw IoError with what the
// first of them said, and its rank; a rank on which it threw throws what it caught.
void agreed(const DeviceMesh& mesh, const std::function<void()>& work);

// The same, with work() on the first rank alone.
void on_first_rank(const DeviceMesh& mesh, const std::function<void()>& work);

}  // namespace d9d
