// The attention of context-parallel ranks by the method that suits each call.
#pragma once

#include "d9d/parallelism/context/all_gather_attention.h"
#include "d9d/parallelism/context/context_parallel_config.h"
#include "d9d/parallelism/context/heads_attention.h"
#include "d9d/parallelism/context/packed_rows.h"
#include "d9d/parallelism/context/peer_block_exchange.h"
#include "d9d/parallelism/exchange/lane_exchanges.h"

namespace d9d {

// Takes what AllGatherAttentionContext takes. attend() throws the errors of choose_context_attention(), too.
class ChosenAttentionContext final : public AttentionContext {
 public:
  ChosenAttentionContext(const PositionCut& positions, const ContextParallelConfig& config)  // over one axis
      : positions_(positions),
        config_(config),
        gathered_(positions),
        heads_(positions),
        exchanges_(std::make_shared<LaneExchanges<PeerBlockExchange>>(
            positions.ranks(),
            config.attention == ContextAttention::kRing ? ExchangeMethod::kCopyEngine : ExchangeMethod::kAuto)) {}
  [[nodiscard]] at::Tensor attend(const kernels::SdpaInputs& inputs, const kernels::SdpaOptions& options,
                                  const kernels::SdpaPreferences& preferences) const override;
  [[nodiscard]] std::shared_ptr<ExchangeMemory> memory() const { return exchanges_; }  // of the ring's copies

 private:
  PositionCut positions_;
  ContextParallelConfig config_;
  AllGatherAttentionContext gathered_;
  HeadsAttentionContext heads_;
  std::shared_ptr<LaneExchanges<PeerBlockExchange>> exchanges_;  // of the ring
  std::shared_ptr<LastPackedRows> packed_ = std::make_shared<LastPackedRows>();
};

}  // namespace d9d
