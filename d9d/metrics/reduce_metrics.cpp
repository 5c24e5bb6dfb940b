#include "d9d/metrics/reduce_metrics.h"

#include <map>

#include <ATen/ATen.h>

#include "d9d/core/device/side_stream.h"

namespace d9d {
namespace {

// Collective. Reduces accumulators of one op.
void reduce(const std::vector<Accumulator*>& accumulators, Communicator& ranks, ReduceOp op) {
  std::vector<at::Tensor> values;
  for (const Accumulator* each : accumulators) {
    values.push_back(each->value_on(ranks.device()).to(ranks.device()).flatten());
  }
  const at::Tensor all = at::cat(values);
  ranks.all_reduce(all, op).wait();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t size = values[i].numel();
    accumulators[i]->reset();
    accumulators[i]->update(all.narrow(0, begin, size).view(accumulators[i]->shape()));
    begin += size;
  }
}

}  // namespace

void reduce_metrics(const std::vector<Metric*>& metrics, const DeviceMesh& ranks) {
  std::map<ReduceOp, std::vector<Accumulator*>> by_op;
  for (Metric* metric : metrics) {
    for (Accumulator* each : metric->accumulators()) {
      by_op[each->op()].push_back(each);
      if (each->has_updates()) keep_for_current_stream(each->value());  // reset() may drop it before it is read
    }
  }
  if (ranks.num_ranks() == 1) return;
  for (const auto& [op, accumulators] : by_op) reduce(accumulators, *ranks.communicator(), op);
}

}  // namespace d9d
