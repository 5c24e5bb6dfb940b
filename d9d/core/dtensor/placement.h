// How a tensor is laid out over one axis of a mesh. A layout is one placement per axis.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "d9d/core/communicator/reduce_op.h"

namespace d9d {

struct Replicate {  // every rank of the axis holds the whole tensor
  bool operator==(const Replicate&) const = default;
};
struct Shard {  // split along a tensor dim between units of `unit` elements, as evenly as torch.chunk
  std::int64_t dim = 0;
  std::int64_t unit = 1;  // such as the rows of a head
  bool operator==(const Shard&) const = default;
};
struct Partial {  // each rank holds a summand: the value is the reduction over the axis
  ReduceOp op = ReduceOp::kSum;
  bool operator==(const Partial&) const = default;
};
struct FlatShard {                  // an equal slice of a flat group of parameters (FSDP), cut after every Shard
  std::int64_t padded_numel = 0;    // elements of the whole group, a multiple of the rank count
  std::int64_t offset_in_unit = 0;  // where this parameter starts in the group, in elements
  bool operator==(const FlatShard&) const = default;
};

using Placement = std::variant<Replicate, Shard, Partial, FlatShard>;
using Placements = std::vector<Placement>;

[[nodiscard]] std::string to_string(const Placement& placement);  // "replicate", "shard(0)", "partial(sum)", ...

}  // namespace d9d
