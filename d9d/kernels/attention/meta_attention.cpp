#include "d9d/kernels/attention/meta_attention.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/kernels/common/first_order.h"

namespace d9d::kernels::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct MetaAttention : torch::autograd::Function<MetaAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value) {
    const at::Tensor out = at::empty(query.sizes(), query.options());
    const at::Tensor logsumexp =
        at::empty({query.size(0), query.size(2), query.size(1)}, query.options().dtype(at::kFloat));
    context->save_for_backward({query, key, value, out, logsumexp});
    return out;
  }

  static variable_list backward(AutogradContext* context, const variable_list& /*grads*/) {
    check_first_order("meta_attention");
    const variable_list saved = context->get_saved_variables();
    variable_list gradients;
    for (std::size_t i = 0; i < 3; ++i) gradients.push_back(at::empty(saved[i].sizes(), saved[i].options()));
    return gradients;
  }
};

}  // namespace

at::Tensor meta_attention(const SdpaInputs& inputs) {
  return MetaAttention::apply(inputs.query, inputs.key, inputs.value);
}

}  // namespace d9d::kernels::detail
