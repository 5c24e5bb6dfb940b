// An optimiser and its provider.
#include "d9d/loop/task/providers.h"

struct Descent {
#ifndef optimizer_without_learning_rate
  // expect: an optimiser needs the member `double learning_rate() const`
  double learning_rate() const;
#endif
#ifdef optimizer_step_without_rate
  // expect: an optimiser needs the member `void step(double learning_rate)`
  void step();
#elif !defined optimizer_without_step
  // expect: an optimiser needs the member `void step(double learning_rate)`
  void step(double learning_rate);
#endif
#ifdef optimizer_state_of_another_type
  // expect: an optimiser needs the member `std::map<std::string, d9d::DTensor> state_dict() const`
  std::map<std::string, at::Tensor> state_dict() const;
#elif !defined optimizer_without_state_dict
  // expect: an optimiser needs the member `std::map<std::string, d9d::DTensor> state_dict() const`
  std::map<std::string, d9d::DTensor> state_dict() const;
#endif
};

struct Provider : d9d::OptimizerProvider {
#ifdef optimizer_provider_with_another_signature
  // expect: marked ‘override’, but does not override
  d9d::Optimizer build_optimizer(const d9d::DistContext&, const std::vector<d9d::NamedParameter>&) override;
#else
  d9d::Optimizer build_optimizer(const d9d::DistContext&, const d9d::TrainableParameters&) override {
    return d9d::Optimizer(Descent());
  }
#endif
};
