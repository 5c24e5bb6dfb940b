#include "d9d/parallelism/fsdp/shard_gather.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/parallelism/fsdp/copy_engine_gather.h"
#include "d9d/parallelism/fsdp/peer_exchange.h"

namespace d9d {
namespace {

class CommunicatorGather final : public ShardGather {
 public:
  CommunicatorGather(std::shared_ptr<Communicator> ranks, const std::string& reason)
      : ranks_(std::move(ranks)), description_(cat("by all_gather: ", reason)) {}

  [[nodiscard]] std::string description() const override { return description_; }
  [[nodiscard]] at::Tensor allocate(std::int64_t num_bytes) override {
    return at::zeros({num_bytes}, at::TensorOptions(ranks_->device()).dtype(at::kByte));
  }
  void begin() override {}
  void gather(const at::Tensor& full, const at::Tensor& slice) override { ranks_->all_gather(full, slice).wait(); }
  void end() override {}
  void abandon() override {}
  void close() override {}

 private:
  std::shared_ptr<Communicator> ranks_;
  std::string description_;
};

}  // namespace

std::unique_ptr<ShardGather> make_shard_gather(ExchangeMethod method, std::shared_ptr<Communicator> ranks,
                                               std::int64_t num_bytes, std::shared_ptr<LinkWatch> watch) {
  PeerExchange found = open_peer_exchange(method, "gather", ranks, num_bytes, std::move(watch));
  if (found.peers == nullptr) return std::make_unique<CommunicatorGather>(std::move(ranks), found.reason);
  return std::make_unique<CopyEngineGather>(std::move(ranks), std::move(found.peers), std::move(found.meeting));
}

}  // namespace d9d
