// The configuration of FSDP: when parameters are resharded, and how gathers and reductions are done.
#pragma once

#include <optional>

#include "d9d/base/dtype.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"
#include "d9d/core/peer_memory/exchange_method.h"

namespace d9d {

enum class ReshardAfterForward {
  kExceptLast,  // all units but the last of a forward, which backward needs first
  kAlways,
  kNever,  // units stay gathered until finish() of the step
};
constexpr auto enum_names(ReshardAfterForward) {
  return std::to_array<EnumName<ReshardAfterForward>>({{ReshardAfterForward::kExceptLast, "except_last"},
                                                       {ReshardAfterForward::kAlways, "always"},
                                                       {ReshardAfterForward::kNever, "never"}});
}

struct FsdpConfig {
  ReshardAfterForward reshard_after_forward = ReshardAfterForward::kExceptLast;
  // The dtype in which gradients of sharded parameters are stored and communicated. Unset: GradientManagerConfig::
  // grad_dtype of the loop, as for other parameters; in a loop without GradientManager float32, or float64 for float64
  // parameters.
  std::optional<Dtype> gradient_dtype = {};
  // Keeps the full gradients of all units until the last microbatch of the step, and reduces once. By default each
  // microbatch reduces, and only the full gradients of the units in work are kept.
  bool reduce_on_last_microbatch = false;
  ExchangeMethod gather = ExchangeMethod::kAuto;  // of parameters
  // Of gradients that are reduced in each microbatch; with reduce_on_last_microbatch the communicator reduces them.
  ExchangeMethod reduce = ExchangeMethod::kAuto;

  static constexpr auto fields() {
    using Fsdp = FsdpConfig;
    return record<Fsdp>(defaulted("reshard_after_forward", &Fsdp::reshard_after_forward),
                        defaulted("gradient_dtype", &Fsdp::gradient_dtype),
                        defaulted("reduce_on_last_microbatch", &Fsdp::reduce_on_last_microbatch),
                        defaulted("gather", &Fsdp::gather), defaulted("reduce", &Fsdp::reduce));
  }
};

}  // namespace d9d
