// The transport of tensors between ranks within a step: of slices of sharded parameters, and of messages of a pipeline.
#pragma once

#include "d9d/base/enum_names.h"

namespace d9d {

enum class ExchangeMethod {
  kAuto,          // copy_engine on GPUs of one machine that can access each other's memory, else communicator
  kCommunicator,  // operations of a Communicator
  kCopyEngine,    // copies between the memory of ranks by copy engines, which use no multiprocessor
};
constexpr auto enum_names(ExchangeMethod) {
  return std::to_array<EnumName<ExchangeMethod>>({{ExchangeMethod::kAuto, "auto"},
                                                  {ExchangeMethod::kCommunicator, "communicator"},
                                                  {ExchangeMethod::kCopyEngine, "copy_engine"}});
}

}  // namespace d9d
