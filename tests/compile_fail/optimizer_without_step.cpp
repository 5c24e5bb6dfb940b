// An optimiser that lacks one function of the protocol: the compiler's message must name it.
// expect: required expression [^ ]*optimizer\.step\(learning_rate\)[^ ]* is invalid
#include "d9d/optim/optimizer.h"

struct Forgetful {
  double learning_rate() const;
  std::map<std::string, at::Tensor> state_dict() const;
  void load_state_dict(const std::map<std::string, at::Tensor>& state);
};

void use() { d9d::Optimizer optimizer{Forgetful()}; }
