// How sharded parameters behave.
#pragma once

#include <optional>

#include "d9d/base/dtype.h"
#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

enum class ReshardAfterForward {
  kExceptLast,  // but a unit that backward needs next stays gathered
  kAlways,
  kNever,  // units stay gathered until the gradients of the step are waited for
};
constexpr auto enum_names(ReshardAfterForward) {
  return std::to_array<EnumName<ReshardAfterForward>>({{ReshardAfterForward::kExceptLast, "except_last"},
                                                       {ReshardAfterForward::kAlways, "always"},
                                                       {ReshardAfterForward::kNever, "never"}});
}

// Who moves slices between ranks within a step.
enum class ExchangeMethod {
  kAuto,          // copy_engine on GPUs of one machine that reach each other's memory, else communicator
  kCommunicator,  // an all_gather, a reduce_scatter
  kCopyEngine,    // each rank copies from the others, and holds no multiprocessor meanwhile
};
constexpr auto enum_names(ExchangeMethod) {
  return std::to_array<EnumName<ExchangeMethod>>({{ExchangeMethod::kAuto, "auto"},
                                                  {ExchangeMethod::kCommunicator, "communicator"},
                                                  {ExchangeMethod::kCopyEngine, "copy_engine"}});
}

struct FsdpConfig {
  ReshardAfterForward reshard_after_forward = ReshardAfterForward::kExceptLast;
  // Of the gradients of sharded parameters, on the wire too. None: what GradientManagerConfig::grad_dtype of the loop
  // says for all others; in a loop without GradientManager float32, or float64 for float64 parameters.
  std::optional<Dtype> gradient_dtype = {};
  // Keep the full gradients of all units until the last microbatch of the step, and reduce once. Default: reduce after
  // each microbatch, one full gradient of a unit at a time.
  bool reduce_on_last_microbatch = false;
  ExchangeMethod gather = ExchangeMethod::kAuto;  // of parameters
  // Of gradients after a microbatch; those kept for the last one are reduced by the communicator.
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
