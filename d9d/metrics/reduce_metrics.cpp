#include "d9d/metrics/reduce_metrics.h"

#include <limits>
#include <map>
#include <memory>

#include <ATen/ATen.h>

#include "d9d/core/device/side_stream.h"

namespace d9d {
namespace {

// Collective. Some backends ignore NaN of some ranks in a maximum or minimum. So a flag for each value, as extreme as
// the op wants, says whether it is NaN on any rank.
void reduce_values(const at::Tensor& values, Communicator& ranks, ReduceOp op) {
  if (op == ReduceOp::kSum) return ranks.all_reduce(values, op).wait();
  const at::Tensor is_nan = values.isnan();
  const at::Tensor flags = is_nan.to(values.scalar_type()) * (op == ReduceOp::kMax ? 1 : -1);
  const at::Tensor all = at::cat({values.masked_fill(is_nan, 0), flags});
  ranks.all_reduce(all, op).wait();
  const auto parts = all.chunk(2);
  values.copy_(parts[0].masked_fill(parts[1] != 0, std::numeric_limits<double>::quiet_NaN()));
}

// Collective. Reduces accumulators of one op.
void reduce(const std::vector<Accumulator*>& accumulators, const DeviceMesh& mesh, ReduceOp op) {
  const std::shared_ptr<Communicator> communicator = mesh.communicator();
  const at::Device device = communicator->device();
  std::vector<at::Tensor> values;
  for (const Accumulator* each : accumulators) {
    const Accumulator counted = counts_here(*each, mesh) ? *each : Accumulator(each->shape(), op);
    values.push_back(counted.value_on(device).to(device).flatten());
  }
  const at::Tensor all = at::cat(values);
  reduce_values(all, *communicator, op);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t size = values[i].numel();
    accumulators[i]->reset();
    accumulators[i]->update(all.narrow(0, begin, size).view(accumulators[i]->shape()));
    begin += size;
  }
}

}  // namespace

bool counts_here(const Accumulator& accumulator, const DeviceMesh& ranks) {
  return accumulator.counted_by() == CountedBy::kToken || !ranks.has_axis("cp") || ranks.axis_coordinate("cp") == 0;
}

void reduce_metrics(const std::vector<Metric*>& metrics, const DeviceMesh& ranks) {
  std::map<ReduceOp, std::vector<Accumulator*>> by_op;
  for (Metric* metric : metrics) {
    for (Accumulator* each : metric->accumulators()) {
      by_op[each->op()].push_back(each);
      if (each->has_updates()) keep_for_current_stream(each->value());  // reset() may drop it before it is read
    }
  }
  if (ranks.num_ranks() == 1) return;
  for (const auto& [op, accumulators] : by_op) reduce(accumulators, ranks, op);
}

}  // namespace d9d
