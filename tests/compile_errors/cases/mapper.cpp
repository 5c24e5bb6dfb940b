// Leaves of mappers between names of tensors.
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/dtype.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

inline d9d::StateMapper experts_of(const std::vector<std::string>& names) {
  namespace mapper = d9d::mapper;
  return mapper::sequential({
#ifdef stack_one_name
      // expect: stack takes the list of names that become one
      mapper::stack(names.front(), "experts", 0),
#else
      mapper::stack(names, "experts", 0),
#endif
#ifdef cast_to_a_dtype_of_the_configuration
      // expect: cast takes LibTorch's at::ScalarType: write cast(name, d9d::to_scalar_type(dtype))
      mapper::cast("experts", d9d::Dtype::kBFloat16),
#else
      mapper::cast("experts", at::ScalarType::BFloat16),
#endif
#ifdef map_by_a_function_of_one_tensor
      // expect: function takes a callable `std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)`
      mapper::function("scaled", {"experts"}, {"scaled"}, [](const at::Tensor& x) { return x; }),
#else
      mapper::function("scaled", {"experts"}, {"scaled"}, [](const std::vector<at::Tensor>& inputs) { return inputs; }),
#endif
  });
}
