#include "d9d/metrics/perplexity_metric.h"

#include <ATen/ATen.h>

namespace d9d {

at::Tensor PerplexityMetric::compute() const { return mean_.compute().exp(); }

}  // namespace d9d
