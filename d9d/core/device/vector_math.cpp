#include "d9d/core/device/vector_math.h"

#include <ATen/ATen.h>

namespace d9d {

void choose_vector_math() {
  static const bool is_chosen = at::ones({1}).exp().defined();  // one element: computed by this thread alone
  (void)is_chosen;
}

}  // namespace d9d
