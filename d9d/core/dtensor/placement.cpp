#include "d9d/core/dtensor/placement.h"

#include "d9d/base/check.h"

namespace d9d {
namespace {

struct Describe {
  std::string operator()(const Replicate& /*placement*/) const { return "replicate"; }
  std::string operator()(const Shard& placement) const {
    return placement.unit == 1 ? cat("shard(", placement.dim, ")")
                               : cat("shard(", placement.dim, " in units of ", placement.unit, ")");
  }
  std::string operator()(const Partial& placement) const { return cat("partial(", to_string(placement.op), ")"); }
  std::string operator()(const FlatShard& placement) const {
    return cat("flat_shard(", placement.offset_in_unit, " of ", placement.padded_numel, ")");
  }
};

}  // namespace

std::string to_string(const Placement& placement) { return std::visit(Describe{}, placement); }

}  // namespace d9d
