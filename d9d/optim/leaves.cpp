#include "d9d/optim/leaves.h"

#include <map>
#include <set>
#include <string>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/base/check.h"

namespace d9d::detail {

void check_leaves(const std::vector<NamedParameter>& parameters, std::string_view optimizer) {
  std::set<std::string> names;
  std::map<const void*, std::string> owners;  // of memory
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    D9D_CHECK(tensor.defined() && tensor.is_floating_point() && tensor.is_leaf() && !tensor.is_meta(), ConfigError,
              "[optim::", optimizer, "] expected parameter '", parameter.name,
              "' to be a floating leaf with storage, got another tensor. Build the optimizer after the parameters.");
    D9D_CHECK(names.insert(parameter.name).second, ConfigError, "[optim::", optimizer,
              "] expected distinct names, got '", parameter.name, "' twice. Name a shared parameter once.");
    if (tensor.numel() == 0) continue;
    const auto [owner, is_new] = owners.emplace(tensor.const_data_ptr(), parameter.name);
    D9D_CHECK(is_new, ConfigError, "[optim::", optimizer, "] expected distinct tensors, got one as '", owner->second,
              "' and '", parameter.name, "'. Name a shared parameter once.");
  }
}

void check_dense_gradient(const NamedParameter& parameter, std::string_view optimizer) {
  const at::Tensor& grad = parameter.tensor.grad();
  D9D_CHECK(grad.layout() == at::kStrided, ConfigError, "[optim::", optimizer, "] expected a dense gradient of '",
            parameter.name, "', got layout ", grad.layout(), ". Sparse gradients are not built.");
}

void check_not_negative(std::string_view name, double value, std::string_view optimizer) {
  D9D_CHECK(value >= 0, ConfigError, "[optim::", optimizer, "] expected ", name, " >= 0, got ", value,
            ". Use a positive number.");
}

void check_learning_rate(double learning_rate, std::string_view optimizer) {
  D9D_CHECK(learning_rate >= 0, ConfigError, "[optim::", optimizer, "] expected a learning rate >= 0, got ",
            learning_rate, ". Check the scheduler.");
}

at::ScalarType state_dtype(const NamedParameter& parameter) { return at::toOpMathType(parameter.tensor.scalar_type()); }

at::Tensor zero_state(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  return at::zeros(tensor.sizes(), tensor.options().dtype(state_dtype(parameter)).requires_grad(false));
}

}  // namespace d9d::detail
