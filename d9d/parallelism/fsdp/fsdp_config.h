// The configuration of FSDP: when parameters are resharded, and how gathers and reductions are done.
#pragma once

#include <cstdint>
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
  std::optional<ReshardAfterForward> reshard_after_forward = {};  // unset: resolve_fsdp() chooses
  // The dtype in which gradients of sharded parameters are stored and communicated. Unset: that of
  // trainer.gradient_manager, as for other parameters; in a loop without GradientManager float32, or float64 for
  // float64 parameters.
  std::optional<Dtype> gradient_dtype = {};
  // True: keeps the full gradients of all units until the last microbatch of the step, and reduces once. False: each
  // microbatch reduces, and only the full gradients of units in use are kept. Unset: resolve_fsdp() chooses.
  std::optional<bool> reduce_on_last_microbatch = {};
  ExchangeMethod gather = ExchangeMethod::kAuto;  // the method for parameters
  // The method for gradients that are reduced in each microbatch; with reduce_on_last_microbatch the communicator
  // reduces them.
  ExchangeMethod reduce = ExchangeMethod::kAuto;

  static constexpr auto fields() {
    using Fsdp = FsdpConfig;
    return record<Fsdp>(defaulted("reshard_after_forward", &Fsdp::reshard_after_forward),
                        defaulted("gradient_dtype", &Fsdp::gradient_dtype),
                        defaulted("reduce_on_last_microbatch", &Fsdp::reduce_on_last_microbatch),
                        defaulted("gather", &Fsdp::gather), defaulted("reduce", &Fsdp::reduce));
  }
};

// Chooses the unset options. With several pipeline ranks: kNever and true, which keep a rank's whole stages and their
// full gradients gathered, because a stage runs other microbatches between a forward and its backward and would
// otherwise gather and reduce in every pass. With one pipeline rank: kExceptLast and false.
[[nodiscard]] constexpr FsdpConfig resolve_fsdp(FsdpConfig config, std::int64_t num_pipeline_ranks) {
  const bool is_pipeline = num_pipeline_ranks > 1;
  if (!config.reshard_after_forward) {
    config.reshard_after_forward = is_pipeline ? ReshardAfterForward::kNever : ReshardAfterForward::kExceptLast;
  }
  if (!config.reduce_on_last_microbatch) config.reduce_on_last_microbatch = is_pipeline;
  return config;
}

}  // namespace d9d
