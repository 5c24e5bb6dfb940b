#include "d9d/parallelism/fsdp/order_print.h"

#include <ATen/ATen.h>

namespace d9d {

at::Tensor OrderPrint::spread(Communicator& ranks) const {
  const at::TensorOptions options = at::TensorOptions(ranks.device()).dtype(at::kDouble);
  const auto value = static_cast<double>(value_);
  const at::Tensor sums = at::stack({at::full({}, value, options), at::full({}, value * value, options)});
  ranks.all_reduce(sums, ReduceOp::kSum).wait();
  return sums[1] - sums[0].square() / static_cast<double>(ranks.size());
}

}  // namespace d9d
