// Stages of a small network in float64, and the same network in one piece: each layer is y = tanh(x w) + x / 2, the
// loss is the weighted mean of the squares. The second tensor of a transfer is a scalar, the sum of one term of each
// layer (like an auxiliary loss); the third tensor holds whole numbers. Stages defer the gradients of their weights to
// W; in the network in one piece autograd computes them.
//
// Example
//   ToyNetwork network({.num_stages = 4, .num_microbatches = 8});
//   network.run_in_one_piece();                        // network.weights[i].grad()
//   ToyStage stage(network, {2});
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/core/autograd/leaf_gradient.h"
#include "d9d/pipelining/executor/pipeline_stage.h"

#include "tests/support/matrix_products.h"

namespace d9d::test {

struct ToyShape {
  std::int64_t num_stages = 1;
  std::int64_t num_microbatches = 1;
  std::int64_t num_frozen = 0;   // first layers without a gradient
  bool has_more_tensors = true;  // a scalar and whole numbers in each transfer
  at::Device device = at::kCPU;
};

constexpr std::int64_t kToyWidth = 5;

// Values are the same on every rank.
inline at::Tensor toy_values(std::int64_t seed, std::int64_t rows, std::int64_t columns, at::Device device) {
  const at::Tensor number = at::arange(rows * columns, at::kDouble) * 0.7 + static_cast<double>(seed) * 1.3;
  return at::sin(number * number).view({rows, columns}).to(device);
}

class ToyNetwork {
 public:
  explicit ToyNetwork(const ToyShape& toy_shape) : shape(toy_shape) {
    for (std::int64_t i = 0; i < shape.num_stages; ++i) {
      weights.push_back(
          toy_values(100 + i, kToyWidth, kToyWidth, shape.device).set_requires_grad(i >= shape.num_frozen));
    }
  }

  // Microbatches have 1, 2, 3, 1, 2, ... rows, plus num_more_rows.
  [[nodiscard]] std::int64_t num_rows(std::int64_t microbatch) const { return 1 + microbatch % 3 + num_more_rows; }
  [[nodiscard]] at::Tensor input(std::int64_t microbatch) const {
    return toy_values(microbatch, num_rows(microbatch), kToyWidth, shape.device);
  }
  [[nodiscard]] at::Tensor layer(std::int64_t index, const at::Tensor& x) const {
    return at::tanh(at::mm(x, weights[static_cast<std::size_t>(index)])) + x / 2;
  }
  [[nodiscard]] static at::Tensor loss(const at::Tensor& y, const at::Tensor& term, std::int64_t microbatch) {
    return (y.square().mean() + term / 7) * (1 + microbatch);
  }

  [[nodiscard]] at::Tensor zero() const { return at::zeros({}, at::TensorOptions(shape.device).dtype(at::kDouble)); }
  [[nodiscard]] at::Tensor whole_numbers(std::int64_t value) const {
    return at::full({3}, value, at::TensorOptions(shape.device).dtype(at::kLong));
  }

  void run_in_one_piece() const {
    for (std::int64_t microbatch = 0; microbatch < shape.num_microbatches; ++microbatch) {
      at::Tensor x = input(microbatch);
      at::Tensor term = zero();
      for (std::int64_t i = 0; i < shape.num_stages; ++i) {
        x = layer(i, x);
        if (shape.has_more_tensors) term = term + x.mean() * (i + 1);
      }
      loss(x, term, microbatch).backward();
    }
  }

  const ToyShape shape;
  std::vector<at::Tensor> weights;
  std::int64_t num_more_rows = 0;  // may change between steps; num_rows() must not be kToyWidth
};

// The product x w; the gradient of w may be deferred.
struct ToyProduct : torch::autograd::Function<ToyProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x.mm(w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    torch::autograd::variable_list results(2);
    if (context->needs_input_grad(0)) results[0] = grads[0].mm(saved[1].t());
    const std::array reads = {saved[0], grads[0]};
    const auto product = [](std::span<const at::Tensor> tensors, const std::optional<GradientPlace>& place) {
      const at::Tensor gradient = tensors[0].t().mm(tensors[1]);
      if (!place) return gradient;
      place->put(gradient);
      return at::Tensor();
    };
    if (context->needs_input_grad(1)) results[1] = make_gradient(1, reads, product);
    return results;
  }
};

class ToyStage : public PipelineStage {
 public:
  ToyStage(const ToyNetwork& network, StageIndex index) : network_(network), index_(index) {}

  std::vector<at::Tensor> transfer(MicrobatchIndex microbatch, StageBoundary) const override {
    const at::TensorOptions meta(at::kMeta);
    const at::Tensor x = at::empty({network_.num_rows(microbatch.value), kToyWidth}, meta.dtype(at::kDouble));
    if (!network_.shape.has_more_tensors) return {x};
    return {x, at::empty({}, meta.dtype(at::kDouble)), at::empty({3}, meta.dtype(at::kLong))};
  }

  std::vector<at::Tensor> forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                  bool backward_follows) override {
    if (on_forward) on_forward(index_, microbatch);
    D9D_CHECK(!followed_, StateError, "a forward came before the backward that follows");
    if (backward_follows) followed_ = microbatch;
    for (const auto& each : made_) num_kept += each.expired() ? 0 : 1;
    const bool is_first = arrived.empty();
    // * 1 makes a copy that the stage owns: Gloo keeps the memory of a message for longer.
    const at::Tensor in = (is_first ? network_.input(microbatch.value) : arrived[0]) * 1;
    const at::Tensor activated = at::tanh(ToyProduct::apply(in, weight()));
    const at::Tensor x = activated + in / 2;
    const bool trains = at::GradMode::is_enabled() && weight().requires_grad();
    if (trains) inputs_[microbatch] = memory_of(in), activated_[microbatch] = memory_of(activated);
    at::Tensor term = network_.zero();
    if (network_.shape.has_more_tensors) {
      if (!is_first) term = arrived[1];
      term = term + x.mean() * (index_.value + 1);
      const at::Tensor expected = network_.whole_numbers(10 * microbatch.value + index_.value);
      D9D_CHECK(is_first || at::equal(arrived[2] + 1, expected), StateError, "whole numbers of another microbatch");
    }
    if (index_.value + 1 == network_.shape.num_stages) {
      if (at::GradMode::is_enabled()) return {network_.loss(x, term, microbatch.value)};
      outputs.push_back(x);
      return {};
    }
    made_.push_back(memory_of(x));
    if (!network_.shape.has_more_tensors) return {x};
    return {x, term, network_.whole_numbers(10 * microbatch.value + index_.value)};
  }

  std::vector<at::Tensor> weights() const override { return {weight()}; }

  // Products for gradients of weights are sums over rows. They are told from other products by the length of the sum:
  // the number of rows is not kToyWidth.
  void backward(MicrobatchIndex microbatch, BackwardPart part, bool is_last,
                const std::function<void()>& compute) override {
    if (on_backward) on_backward(index_, microbatch, part);
    const auto followed = std::exchange(followed_, std::nullopt);
    D9D_CHECK(!followed || (followed == microbatch && part != BackwardPart::kWeight), StateError,
              "another backward came before the one that follows");
    if (part != BackwardPart::kInput) ++num_complete;
    is_complete = is_last;
    const MatrixProducts products;
    compute();
    D9D_CHECK(part == BackwardPart::kWeight || is_free(activated_[microbatch]), StateError, "a graph is kept");
    D9D_CHECK(part != BackwardPart::kWeight || is_free(inputs_[microbatch]), StateError, "a product is kept");
    if (!weight().is_cpu()) return;  // backward runs on another thread
    const std::int64_t of_inputs = products.count(kToyWidth), of_weights = products.count() - of_inputs;
    D9D_CHECK(of_weights == (part != BackwardPart::kInput && weight().requires_grad() ? 1 : 0), StateError, of_weights,
              " products of weights");
    D9D_CHECK(part != BackwardPart::kWeight || of_inputs == 0, StateError, of_inputs, " products of inputs in W");
  }

  // The number of microbatches whose input is kept: those that have run F, and not yet B or W.
  [[nodiscard]] std::int64_t num_live() const {
    return std::ranges::count_if(inputs_, [](const auto& each) { return !is_free(each.second); });
  }

  std::function<void(StageIndex, MicrobatchIndex)> on_forward;
  std::function<void(StageIndex, MicrobatchIndex, BackwardPart)> on_backward;
  std::vector<at::Tensor> outputs = {};  // outputs of the last stage
  std::int64_t num_kept = 0;             // outputs that still existed in later forwards
  std::int64_t num_complete = 0;         // number of B and W
  bool is_complete = false;              // is_last of the latest backward()

 private:
  using Memory = c10::weak_intrusive_ptr<c10::StorageImpl>;
  [[nodiscard]] static Memory memory_of(const at::Tensor& tensor) {
    return Memory(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(tensor.storage().unsafeGetStorageImpl()));
  }
  [[nodiscard]] static bool is_free(const std::optional<Memory>& memory) { return !memory || memory->expired(); }
  [[nodiscard]] const at::Tensor& weight() const { return network_.weights[static_cast<std::size_t>(index_.value)]; }

  const ToyNetwork& network_;
  const StageIndex index_;
  std::vector<Memory> made_ = {};  // outputs so far
  std::optional<MicrobatchIndex> followed_ = {};
  std::map<MicrobatchIndex, std::optional<Memory>> inputs_ = {}, activated_ = {};
};

}  // namespace d9d::test
