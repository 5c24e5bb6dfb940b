// The configuration of tensor parallelism: how activations are exchanged at the edges of blocks.
#pragma once

#include "d9d/base/record.h"
#include "d9d/core/peer_memory/exchange_method.h"

namespace d9d {

struct TensorParallelConfig {
  // By copies products compute while rows are exchanged; by the communicator they wait for each other.
  ExchangeMethod exchange = ExchangeMethod::kAuto;

  static constexpr auto fields() {
    return record<TensorParallelConfig>(defaulted("exchange", &TensorParallelConfig::exchange));
  }
};

}  // namespace d9d
