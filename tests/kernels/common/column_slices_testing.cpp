#include "tests/kernels/common/column_slices_testing.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/column_slices.h"

namespace d9d::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RoomInGradient : torch::autograd::Function<RoomInGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, std::int64_t count,
                            std::int64_t num_column_dims, at::Tensor* kept) {
    context->saved_data["count"] = count;
    context->saved_data["num_column_dims"] = num_column_dims;
    context->saved_data["kept"] = reinterpret_cast<std::int64_t>(kept);
    return x.clone();
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    at::Tensor slice = kernels::detail::empty_behind_columns(grads[0], context->saved_data["count"].toInt(),
                                                             context->saved_data["num_column_dims"].toInt());
    if (auto* const kept = reinterpret_cast<at::Tensor*>(context->saved_data["kept"].toInt())) {
      const auto size = static_cast<std::int64_t>(slice.storage().nbytes() / slice.element_size());
      const at::AutoDispatchBelowADInplaceOrView no_views;  // avoids a view, which would keep a reference to the slice
      *kept = slice.as_strided({size}, {1}, 0).fill_(7);
    }
    slice.copy_(grads[0]);
    return {slice, {}, {}, {}};
  }
};

}  // namespace

at::Tensor with_room_in_gradient(const at::Tensor& x, std::int64_t count, std::int64_t num_column_dims,
                                 at::Tensor* kept) {
  return RoomInGradient::apply(x, count, num_column_dims, kept);
}

}  // namespace d9d::testing
