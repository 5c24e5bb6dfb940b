// Gives the router of a mixture of experts the choices of another computation, so that two computations in low
// precision differ only by rounding, and not by the experts of tokens whose scores are nearly tied.
//
// Example
//   auto replay = std::make_shared<RoutingReplay>(/*indices=*/expected.tensor("routing.0"));
//   layer.mlp->router->add_hook(replay);
//   ...                                                  // forward
//   EXPECT_LE(replay->largest_margin(), tolerance("bf16 routing").value);
#pragma once

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/blocks/moe/router.h"

namespace d9d::test {

// A token whose own choice equals the given one keeps the router's result. Every other token gets the given experts,
// with the probabilities that follow from its own logits.
class RoutingReplay : public ModuleHook {
 public:
  explicit RoutingReplay(at::Tensor indices) : indices_(std::move(indices)) {}  // [T, k] int64

  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {}
  void after_forward(Module& module, const TensorRefs& outputs) override {
    const at::Tensor logits = outputs[0].get();
    at::Tensor& indices = outputs[1].get();
    at::Tensor& probs = outputs[2].get();
    const at::Tensor all = logits.softmax(-1, probs.scalar_type());
    at::Tensor given = all.gather(-1, indices_);
    const at::Tensor margin = all.gather(-1, indices).sum(-1) - given.sum(-1);
    largest_margin_ = std::max(largest_margin_, margin.max().item<double>());
    const at::Tensor differs =
        std::get<0>(indices.sort(-1)).ne(std::get<0>(indices_.sort(-1))).any(-1, /*keepdim=*/true);
    num_replaced_ += differs.sum().item<std::int64_t>();
    if (static_cast<TopKRouter&>(module).config.renormalize_probabilities) given = given / given.sum(-1, true);
    probs = at::where(differs, given, probs);
    indices = at::where(differs, indices_, indices);
  }

  // The largest difference in probability between a token's own choice and the given one; 0 if all agree.
  [[nodiscard]] double largest_margin() const { return largest_margin_; }
  [[nodiscard]] std::int64_t num_replaced() const { return num_replaced_; }

 private:
  at::Tensor indices_;
  double largest_margin_ = 0.0;
  std::int64_t num_replaced_ = 0;
};

}  // namespace d9d::test
