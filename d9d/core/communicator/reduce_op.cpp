#include "d9d/core/communicator/reduce_op.h"

namespace d9d {

const char* to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kMin:
      break;
  }
  return "min";
}

}  // namespace d9d
