#include "d9d/modules/blocks/regularization/dropout.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"

namespace d9d {

Dropout::Dropout(double drop_probability) : probability(drop_probability) {
  D9D_CHECK(probability >= 0.0 && probability < 1.0, ConfigError,
            "[modules::dropout] expected a probability in [0, 1), got ", probability, ".");
}

at::Tensor Dropout::forward(const at::Tensor& x) const {
  if (!is_training() || probability == 0.0) return x;
  const RandomClock clock = replayed([this] { return *random_clock(); });
  const std::string purpose = cat("dropout of microbatch ", clock.microbatch);
  const RandomStream stream{.key = philox_key(clock.base_seed, purpose, canonical_name()), .step = clock.step};
  const at::Tensor mask = at::empty(x.sizes(), x.options().dtype(at::kBool));
  fill_bernoulli(mask, whole_window(mask), stream, 1.0 - probability);
  return x * mask / (1.0 - probability);
}

}  // namespace d9d
