// Modules, and a model as a stage of a job.
#include <variant>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/conv.h>

#include "d9d/loop/task/providers.h"
#include "d9d/modules/adopt.h"

struct Logits {
  at::Tensor logits;
#ifndef result_without_fields
  // expect: the struct that forward returns must list its members in `static constexpr auto fields()`
  static constexpr auto fields() { return d9d::record<Logits>(d9d::field("logits", &Logits::logits)); }
#endif
};

struct Types {
  using Batch = at::Tensor;
  using Input = at::Tensor;
  using Shared = std::monostate;
  using Output = Logits;
  using State = std::monostate;
};

struct Block : d9d::Module {
  explicit Block(std::int64_t width) : width(width) {
#ifdef register_a_tensor
    // expect: register_parameter takes no tensor, since memory comes later
    register_parameter("scale", at::Tensor());
#else
    register_parameter("scale", {.shape = {width}, .init = d9d::init::ones()});
#endif
  }
  at::Tensor forward(const at::Tensor& x) const;
  const std::int64_t width;
};

struct Plain {};

struct Model : d9d::Module {
  Model()
#ifdef register_with_other_arguments
      // expect: make_module<T> and register_module<T> call a constructor of T, and none takes these arguments
      : block(register_module<Block>("block", "narrow")),
#elif defined register_what_is_no_module
      // expect: register_module takes a ModulePtr: write register_module<T>(name, arguments of T's constructor)
      : block(register_module("block", std::make_shared<Block>(3))),
#else
      : block(register_module<Block>("block", 3)),
#endif
#ifdef adopt_a_module
        // expect: adopt takes a function that makes a module: adopt([] { return torch::nn::Linear(3, 4); }) instead of
        convolution(register_module("convolution", d9d::adopt(torch::nn::Conv1d(1, 1, 5)))) {
  }
#elif defined register_module_of_torch
        // expect: for a module of torch::nn register_module(name, adopt([] { return ...; }))
        convolution(register_module("convolution", torch::nn::Conv1d(1, 1, 5))) {
  }
#else
        convolution(register_module("convolution", d9d::adopt([] { return torch::nn::Conv1d(1, 1, 5); }))) {
  }
#endif

#ifdef forward_returns_another_type
  // expect: forward of the model of as_model_stage<Types> must return Types::Output, or a std::variant that holds it
  at::Tensor forward(const at::Tensor& input, const std::monostate&) const;
#elif defined forward_takes_other_arguments
  // expect: needs the member `forward(const Types::Input&, const Types::Shared&)`: change its arguments, or Types
  Logits forward(const at::Tensor& input) const;
#elif !defined model_without_forward
  // expect: needs the member `forward(const Types::Input&, const Types::Shared&)`
  std::variant<std::monostate, Logits> forward(const at::Tensor& input, const std::monostate&) const;
#endif

  const d9d::ModulePtr<Block> block;
  const d9d::ModulePtr<d9d::Adopted<torch::nn::Conv1dImpl>> convolution;
};

struct Provider : d9d::ModelProvider<Types> {
#ifdef provider_with_another_signature
  // expect: marked ‘override’, but does not override
  d9d::ModelStage<Types> initialize_model_stage(const d9d::DistContext&) override;
#else
  d9d::ModelStage<Types> initialize_model_stage(const d9d::DistContext&, const d9d::PipelineStageInfo&) override;
#endif
};

void use() {
  const auto model = d9d::make_module<Model>();
  (void)d9d::as_model_stage<Types>(model);
#ifdef make_with_other_arguments
  // expect: make_module<T> and register_module<T> call a constructor of T, and none takes these arguments
  const auto block = d9d::make_module<Block>(3, 4);
#else
  const auto block = d9d::make_module<Block>(3);
#endif
#ifdef make_what_is_no_module
  // expect: make_module<T> and register_module<T> need a class T that derives from d9d::Module
  (void)d9d::make_module<Plain>();
#endif
#ifdef call_with_other_arguments
  // expect: no match for call to ‘(const d9d::ModulePtr<Block>) (at::Tensor, int)’
  block(at::Tensor(), 3);
#else
  block(at::Tensor());
#endif
}
