#include "d9d/core/collectives/differentiable.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/checkpoint.h"

namespace d9d {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Step = std::function<at::Tensor(const at::Tensor&)>;

struct Adjoint final : torch::CustomClassHolder {
  explicit Adjoint(Step step) : backward(std::move(step)) {}
  Step backward;  // holds the communicator and numbers, no tensors
};

struct Collective : torch::autograd::Function<Collective> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const Step& run,
                            const c10::intrusive_ptr<Adjoint>& adjoint) {
    context->saved_data["adjoint"] = c10::IValue::make_capsule(adjoint);
    return run(x);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const auto adjoint = c10::static_intrusive_pointer_cast<Adjoint>(context->saved_data["adjoint"].toCapsule());
    return {adjoint->backward(grads.front()), at::Tensor(), at::Tensor()};
  }
};

// `backward` itself calls one of these functions, so gradients of gradients are correct too.
at::Tensor apply(const at::Tensor& x, const Step& run, Step backward) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return run(x);
  return Collective::apply(x, run, c10::make_intrusive<Adjoint>(std::move(backward)));
}

std::int64_t wrapped_dim(const char* function, const at::Tensor& x, std::int64_t dim) {
  D9D_CHECK(dim >= -x.dim() && dim < x.dim(), ConfigError, "[core::", function, "] expected a dim in [", -x.dim(), ", ",
            x.dim(), "), got ", dim, ".");
  return dim < 0 ? dim + x.dim() : dim;
}

void check_divides(const char* function, const at::Tensor& x, std::int64_t dim, const Communicator& communicator) {
  D9D_CHECK(x.size(dim) % communicator.size() == 0, ConfigError, "[core::", function, "] expected dim ", dim,
            " to be divisible by the ", communicator.size(), " ranks of group '", communicator.group().name,
            "', got shape ", x.sizes(), ". Pad it, or use redistribute().");
}

// [..., n, ...] -> [W, ..., n / W, ...], newly allocated.
at::Tensor parts_of(const at::Tensor& x, std::int64_t dim, const Communicator& communicator) {
  return x.unflatten(dim, {communicator.size(), x.size(dim) / communicator.size()})
      .movedim(dim, 0)
      .clone(at::MemoryFormat::Contiguous);
}

// [W, ..., n, ...] -> [..., W * n, ...]
at::Tensor join_parts(const at::Tensor& parts, std::int64_t dim) {
  return parts.movedim(0, dim).flatten(dim, dim + 1).contiguous();
}

at::Tensor sum_of_ranks(const at::Tensor& x, Communicator& communicator) {
  const at::Tensor sum = x.detach().clone(at::MemoryFormat::Contiguous);
  communicator.all_reduce(sum, ReduceOp::kSum).wait();
  return sum;
}

}  // namespace

at::Tensor all_gather_along(const at::Tensor& x, std::int64_t dim, const CommunicatorPtr& communicator) {
  dim = wrapped_dim("all_gather_along", x, dim);
  if (communicator->size() == 1) return x;
  const Step run = [&](const at::Tensor& input) {
    std::vector<std::int64_t> shape = input.sizes().vec();
    shape.insert(shape.begin(), communicator->size());
    const at::Tensor parts = at::empty(shape, input.options());
    const at::Tensor sent = input.contiguous();
    communicator->all_gather(parts.flatten(0, 1), sent).wait();
    return join_parts(parts, dim);
  };
  return apply(x, run, [=](const at::Tensor& grad) { return reduce_scatter_along(grad, dim, communicator); });
}

at::Tensor reduce_scatter_along(const at::Tensor& x, std::int64_t dim, const CommunicatorPtr& communicator) {
  dim = wrapped_dim("reduce_scatter_along", x, dim);
  check_divides("reduce_scatter_along", x, dim, *communicator);
  if (communicator->size() == 1) return x;
  const Step run = [&](const at::Tensor& input) {
    const at::Tensor parts = parts_of(input, dim, *communicator);
    const at::Tensor output = at::empty(parts.sizes().slice(1), parts.options());
    communicator->reduce_scatter(output, parts, ReduceOp::kSum).wait();
    return output;
  };
  return apply(x, run, [=](const at::Tensor& grad) { return all_gather_along(grad, dim, communicator); });
}

at::Tensor all_reduce_forward(const at::Tensor& x, const CommunicatorPtr& communicator) {
  if (communicator->size() == 1) return x;
  const Step run = [&](const at::Tensor& input) { return sum_of_ranks(input, *communicator); };
  return apply(x, run, [=](const at::Tensor& grad) { return all_reduce_backward(grad, communicator); });
}

at::Tensor all_reduce_backward(const at::Tensor& x, const CommunicatorPtr& communicator) {
  if (communicator->size() == 1) return x;
  return apply(
      x, [](const at::Tensor& input) { return input; },
      [=](const at::Tensor& grad) { return all_reduce_forward(grad, communicator); });
}

at::Tensor all_reduce_both(const at::Tensor& x, const CommunicatorPtr& communicator) {
  if (communicator->size() == 1) return x;
  const Step run = [&](const at::Tensor& input) {
    // The log keeps the tensor that was not detached.
    return replayed([&] { return sum_of_ranks(input, *communicator); }).detach();
  };
  return apply(x, run, [=](const at::Tensor& grad) { return all_reduce_both(grad, communicator); });
}

at::Tensor all_to_all_along(const at::Tensor& x, std::int64_t split_dim, std::int64_t concat_dim,
                            const CommunicatorPtr& communicator) {
  split_dim = wrapped_dim("all_to_all_along", x, split_dim);
  concat_dim = wrapped_dim("all_to_all_along", x, concat_dim);
  check_divides("all_to_all_along", x, split_dim, *communicator);
  if (communicator->size() == 1) return x;
  const Step run = [&](const at::Tensor& input) {
    const at::Tensor parts = parts_of(input, split_dim, *communicator);
    const at::Tensor received = at::empty_like(parts);
    const std::vector<std::int64_t> splits(static_cast<std::size_t>(communicator->size()), 1);
    communicator->all_to_all(received, parts, splits, splits).wait();
    return join_parts(received, concat_dim);
  };
  return apply(x, run,
               [=](const at::Tensor& grad) { return all_to_all_along(grad, concat_dim, split_dim, communicator); });
}

at::Tensor all_to_all_rows(const at::Tensor& x, const std::vector<std::int64_t>& output_splits,
                           const std::vector<std::int64_t>& input_splits, const CommunicatorPtr& communicator) {
  const auto sum = [](const std::vector<std::int64_t>& splits) {
    return std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  };
  const auto are_splits = [&](const std::vector<std::int64_t>& splits) {
    return std::ssize(splits) == communicator->size() && std::ranges::all_of(splits, [](auto n) { return n >= 0; });
  };
  D9D_CHECK(x.dim() > 0 && are_splits(output_splits) && are_splits(input_splits) && sum(input_splits) == x.size(0) &&
                (communicator->size() > 1 || output_splits == input_splits),
            ConfigError, "[core::all_to_all_rows] expected ", communicator->size(),
            " output and input splits, the latter of all rows of ", x.sizes(), ", got ", at::IntArrayRef(output_splits),
            " and ", at::IntArrayRef(input_splits), ".");
  if (communicator->size() == 1) return x;
  const Step run = [&](const at::Tensor& input) {
    std::vector<std::int64_t> shape = input.sizes().vec();
    shape[0] = sum(output_splits);
    const at::Tensor received = at::empty(shape, input.options());
    const at::Tensor sent = input.contiguous();
    communicator->all_to_all(received, sent, output_splits, input_splits).wait();
    return received;
  };
  return apply(
      x, run, [=](const at::Tensor& grad) { return all_to_all_rows(grad, input_splits, output_splits, communicator); });
}

}  // namespace d9d
