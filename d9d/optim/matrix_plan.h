// Which rank orthogonalises which matrix of a set of parameters, and what ranks send each other for it. A matrix that
// is cut over ranks has one owner among them, which gets the parts of a direction and sends parts of the update back.
//
// Example
//   std::vector<double> loads;
//   const MatrixPlan plan = plan_matrices({weight, up}, loads);
//   for (const HeldSlice& slice : plan.held) { ... }      // write directions to `held`
//   ranks.all_to_all(owned, held, plan.owned_splits, plan.held_splits).wait();
//   for (const OwnedMatrix& matrix : plan.owned) { ... }  // read matrices from `owned`, write updates there
//   ranks.all_to_all(held, owned, plan.held_splits, plan.owned_splits).wait();
//
// A parameter of two dims is one matrix; of three dims, [groups, rows, cols], it is one for each group. An axis over
// which groups are cut (expert parallelism) needs no exchange: its ranks have different matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"
#include "d9d/optim/optimizer_protocol.h"

namespace d9d::detail {

// The elements of a matrix that this rank holds: [begin, begin + numel) of the parameter's tensor, flattened.
struct HeldSlice {
  std::size_t parameter = 0;  // its index
  std::int64_t begin = 0;
  std::int64_t numel = 0;
  std::int64_t offset = 0;  // in the buffer of what this rank holds
};

// The elements of a matrix that one rank holds, as its owner sees them.
struct OwnedSlice {
  std::vector<LocalBox> boxes = {};        // in the matrix, one after the other
  std::optional<std::int64_t> begin = {};  // position in the row-major order of the matrix, if they are contiguous
  std::int64_t numel = 0;
  std::int64_t offset = 0;  // in the buffer of what this rank owns
};

struct OwnedMatrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<OwnedSlice> slices = {};  // of the ranks that hold any
};

// Splits count elements, by rank of the mesh of matrix_ranks(): of what this rank holds, those of each owner; of what
// it owns, those of each holder.
struct MatrixPlan {
  std::vector<HeldSlice> held = {};
  std::vector<OwnedMatrix> owned = {};
  std::vector<std::int64_t> held_splits = {};
  std::vector<std::int64_t> owned_splits = {};
};

// The shape of the whole parameter, also where it has no layout.
[[nodiscard]] std::vector<std::int64_t> whole_shape(const NamedParameter& parameter);

// The axes, as ascending indices, over which the parameter's matrices are cut.
[[nodiscard]] std::vector<std::size_t> matrix_axes(const NamedParameter& parameter);
// The ranks along these axes; without axes if each rank has whole matrices.
[[nodiscard]] DeviceMesh matrix_ranks(const NamedParameter& parameter);
// How many ranks share the elements of the parameter.
[[nodiscard]] std::int64_t num_holders(const NamedParameter& parameter);

// Local, with the same owners on all ranks. parameters: of two or three dims, with the same mesh and matrix_axes().
// loads: the cost of what each rank owns so far, to which this adds; empty at first. The next matrix, from the
// costliest on, goes to the rank that has least.
[[nodiscard]] MatrixPlan plan_matrices(const std::vector<NamedParameter>& parameters, std::vector<double>& loads);

// Copies between a matrix [rows, cols], contiguous, and a slice of it [numel].
void copy_slice_to_matrix(const at::Tensor& matrix, const at::Tensor& values, const OwnedSlice& slice);
void copy_matrix_to_slice(const at::Tensor& matrix, const at::Tensor& values, const OwnedSlice& slice);

}  // namespace d9d::detail
