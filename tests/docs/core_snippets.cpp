// Code that is shown in the pages about d9d/core but not part of a program: compiled with the library, never run.
// tools/check_snippets.py checks that the pages agree with it.
#include <array>
#include <functional>
#include <iostream>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/boundary.h"
#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/core/collectives/differentiable.h"
#include "d9d/core/communicator/communicator.h"
#include "d9d/core/communicator/to_host.h"
#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/launch/launch.h"
#include "d9d/core/offload/offload.h"
#include "d9d/core/tree/tree.h"
#include "d9d/data/sequences/token_sample.h"

namespace core_pages {

// docs/trees.md
template <d9d::TensorTree Tree>
Tree to_device(const Tree& tree, at::Device device) {
  return d9d::tree_map([&](const at::Tensor& leaf) { return leaf.defined() ? leaf.to(device) : leaf; }, tree);
}

template <d9d::TensorTree Tree>
void print_shapes(const Tree& tree) {
  for (const auto& [path, leaf] : d9d::tree_leaves_with_path(tree)) std::cout << path << ' ' << leaf.sizes() << '\n';
}

template d9d::TokenBatch to_device(const d9d::TokenBatch&, at::Device);
template void print_shapes(const d9d::TokenBatch&);

// docs/autograd.md
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// y = x w
struct Product : torch::autograd::Function<Product> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x.mm(w);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const std::array reads = {saved[0], grads[0]};  // kept where the product waits
    const auto product = [](std::span<const at::Tensor> tensors, const std::optional<d9d::GradientPlace>& place) {
      const at::Tensor gradient = tensors[0].t().mm(tensors[1]);
      if (!place) return gradient;
      place->put(gradient);
      return at::Tensor();
    };
    return {grads[0].mm(saved[1].t()), d9d::make_gradient(/*input=*/1, reads, product)};
  }
};

// Gradients of `weight` are accumulated in float32, in memory of the caller.
void keep_gradient(const at::Tensor& x, const at::Tensor& weight) {
  const d9d::GradientPlace main_grad{.tensor = at::zeros(weight.sizes(), weight.options().dtype(at::kFloat)),
                                     .has_values = true};
  const auto take = [&](const at::Tensor& leaf) {  // leaf.grad(): from operators that do not call make_gradient()
    if (leaf.grad().defined()) main_grad.put(std::exchange(leaf.mutable_grad(), at::Tensor()));
  };
  const d9d::GradientHookHandle hook = d9d::on_gradient(weight, {.arrived = take, .place = [&] { return main_grad; }});
  Product::apply(x, weight).sum().backward();  // added to main_grad.tensor; weight.grad() stays undefined
}

void split(const at::Tensor& x, const at::Tensor& weight) {
  d9d::DeferredGradients deferred({weight});
  d9d::WeightGradients of_weights = deferred.keep([&] { Product::apply(x, weight).sum().backward(); });
  // I has ended: x.grad() is complete, weight.grad() is undefined, and the graph is freed.
  of_weights.run();  // W: the product of x and the gradient of y
}

// `begin` runs when backward enters the layer, `end` when it leaves it.
template <class Layer>
at::Tensor watched(const Layer& layer, at::Tensor x, std::function<void()> begin, std::function<void()> end) {
  d9d::on_backward({x}, std::move(end));
  at::Tensor y = layer(x);
  d9d::on_backward({y}, std::move(begin));
  return y;
}
template at::Tensor watched(const std::function<at::Tensor(const at::Tensor&)>&, at::Tensor, std::function<void()>,
                            std::function<void()>);

// docs/offload.md
void sleep_and_wake(const std::vector<at::Tensor>& tensors, const std::function<void()>& lend_the_device) {
  d9d::OffloadedTensors asleep = d9d::offload_tensors(tensors, {.pin_memory = true});
  lend_the_device();  // the memory is free; using one of the tensors throws
  d9d::onload_tensors(asleep);
}

// A subsystem with tensors on a device.
class Moments final : public d9d::Offloadable {
 public:
  explicit Moments(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}
  void offload(const d9d::OffloadContext& context) override {
    D9D_CHECK(!is_offloaded_, d9d::StateError, "expected moments on their device, got offloaded ones.");
    asleep_ = d9d::offload_tensors(tensors_, context.options);
    is_offloaded_ = true;
  }
  void onload(const d9d::OnloadContext&) override {
    D9D_CHECK(is_offloaded_, d9d::StateError, "expected offloaded moments, got some on their device.");
    d9d::onload_tensors(asleep_);
    is_offloaded_ = false;
  }
  bool is_offloaded() const override { return is_offloaded_; }

 private:
  std::vector<at::Tensor> tensors_;
  d9d::OffloadedTensors asleep_;
  bool is_offloaded_ = false;
};

// docs/dist_context.md
struct Config {
  d9d::LaunchConfig launch = {};
  d9d::DeviceMeshParameters mesh = {};
  static constexpr auto fields() {
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh));
  }
};

void count_replicas(const Config&, const d9d::DistContext& context) {
  context.main_process_first([&] { context.log().info("rank 0 prints this before the others"); });
  const d9d::DeviceMesh& dense = context.mesh(d9d::MeshDomain::kDense);
  const auto data = dense.slice({"dp_replicate", "dp_cp_shard"}).communicator();  // one group for both axes
  const at::Tensor count = at::ones({1}, context.device());
  data->all_reduce(count, d9d::ReduceOp::kSum).wait();
  if (context.is_main_process()) context.log().info(d9d::to_host(count, *data).item<float>(), " ranks with own data");
}

int run(int argc, char** argv) { return d9d::launch<Config>(argc, argv, count_replicas); }

// docs/collectives.md
at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& up, const at::Tensor& down,
                        const d9d::CommunicatorPtr& tp) {
  const at::Tensor whole = d9d::all_gather_along(x, /*dim=*/1, tp);           // [B, S / W, H] -> [B, S, H]
  const at::Tensor summand = at::linear(at::linear(whole, up).tanh(), down);  // with the rank's rows, then columns
  return d9d::reduce_scatter_along(summand, /*dim=*/1, tp);                   // [B, S, H] -> [B, S / W, H], summed
}

at::Tensor swap_dims(const d9d::DeviceMesh& mesh, const at::Tensor& x) {
  const std::shared_ptr<d9d::Communicator> cp = mesh.communicator("cp");
  // [batch, positions / W, heads, d] -> [batch, positions, heads / W, d]; backward goes the other way
  const at::Tensor q = d9d::all_to_all_along(x, /*split_dim=*/2, /*concat_dim=*/1, cp);
  return q;
}

at::Tensor gather_beside(const at::Tensor& shard, d9d::Communicator& group, const std::function<void()>& compute) {
  const at::Tensor full = at::empty({group.size() * shard.size(0)}, shard.options());
  d9d::Work gathering = group.all_gather(full, shard);  // [W * n] <- [n] of each rank
  compute();                                            // does not read `full`, and does not write `shard`
  gathering.wait();
  return full;
}

}  // namespace core_pages
