// Which positions of a sequence each of several ranks has: one value, by which inputs are cut, dropout numbers its
// elements, attention knows which positions its queries have, and generation finds the last one.
//
// Example
//   const PositionCut outer(batch.slice({"cp"}), {{0, 3}, {1, 2}});       // of four equal chunks each rank has two
//   outer.part_of(ids, /*dim=*/1);                                        // on the first: the first and the last chunk
//   const PositionCut cut = outer.then(PositionCut(batch.slice({"tp"})));
//   cut.ranges(12);                                                       // on the third of 2 x 2 ranks: {[3, 6)}
//
// Legend   S positions of the whole sequence, W ranks
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/dtensor/layout.h"
#include "d9d/core/mesh/device_mesh.h"

namespace d9d {

class PositionCut {
 public:
  PositionCut() = default;                 // one rank, which has all positions
  explicit PositionCut(DeviceMesh ranks);  // rank r has part r of W equal parts
  // Rank r has chunks chunks_of_rank[r] of equal chunks, in this order: as many on each rank, each chunk on one.
  PositionCut(DeviceMesh ranks, std::vector<std::vector<std::int64_t>> chunks_of_rank);
  // `inner` cuts what this leaves to a rank.
  [[nodiscard]] PositionCut then(const PositionCut& inner) const;

  [[nodiscard]] std::int64_t num_ranks() const;
  [[nodiscard]] DeviceMesh ranks() const;      // of a cut that is not one after another
  [[nodiscard]] std::int64_t divisor() const;  // S must be a multiple of it

  // Local. The positions of a rank, in the order in which it has them; `rank` counts the ranks of `inner` fastest. The
  // first form is for this rank. Adjacent ranges are one. Throws ConfigError unless S is a multiple of divisor().
  [[nodiscard]] std::vector<FlatRange> ranges(std::int64_t length) const;
  [[nodiscard]] std::vector<FlatRange> ranges(std::int64_t length, std::int64_t rank) const;

  // Local. This rank's positions of x, which has S in `dim`, or x itself on one rank. A view if they are one range.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& x, std::int64_t dim) const;
  // Local. The inverse for the parts of all ranks, which are concatenated in `dim` in the order of the ranks: that of
  // the sequence.
  [[nodiscard]] at::Tensor in_order(const at::Tensor& parts, std::int64_t dim) const;
  // Local. The inverse of in_order(): x, which has S in `dim`, as the parts of all ranks one after another.
  [[nodiscard]] at::Tensor in_rank_order(const at::Tensor& x, std::int64_t dim) const;

  // The rank that has a position, and where it has it.
  struct Place {
    std::int64_t rank = 0;
    std::int64_t index = 0;
  };
  [[nodiscard]] Place place_of(std::int64_t position, std::int64_t length) const;

  bool operator==(const PositionCut&) const = default;

 private:
  struct Step {
    DeviceMesh ranks;
    std::vector<std::vector<std::int64_t>> chunks_of_rank;
    [[nodiscard]] std::int64_t num_chunks() const;
    bool operator==(const Step&) const = default;
  };

  [[nodiscard]] std::int64_t rank() const;

  std::vector<Step> steps_;  // outermost first
};

}  // namespace d9d
