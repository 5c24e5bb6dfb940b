#include "d9d/core/communicator/meta/meta_backend.h"

#include <utility>

namespace d9d {
namespace {

class MetaCommunicator final : public Communicator {
 public:
  using Communicator::Communicator;

  [[nodiscard]] at::Device device() const override { return at::kMeta; }
  [[nodiscard]] Work all_reduce(const at::Tensor&, ReduceOp) override { return {}; }
  [[nodiscard]] Work all_gather(const at::Tensor&, const at::Tensor&) override { return {}; }
  [[nodiscard]] Work reduce_scatter(const at::Tensor&, const at::Tensor&, ReduceOp) override { return {}; }
  [[nodiscard]] Work all_to_all(const at::Tensor&, const at::Tensor&, const std::vector<std::int64_t>&,
                                const std::vector<std::int64_t>&) override {
    return {};
  }
  [[nodiscard]] Work broadcast(const at::Tensor&, std::int64_t) override { return {}; }
  [[nodiscard]] Work gather(const std::vector<at::Tensor>&, const at::Tensor&, std::int64_t) override { return {}; }
  [[nodiscard]] Work scatter(const at::Tensor&, const std::vector<at::Tensor>&, std::int64_t) override { return {}; }
  [[nodiscard]] Work exchange(const std::vector<PointToPoint>&) override { return {}; }
  void barrier() override {}
  void set_timeout(std::chrono::milliseconds) override {}
  void abort(const std::string&) override {}
};

class MetaBackend final : public CommunicatorBackend {
 public:
  MetaBackend(std::int64_t rank, std::int64_t num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t world_size() const override { return num_ranks_; }
  [[nodiscard]] at::Device device() const override { return at::kMeta; }
  [[nodiscard]] std::shared_ptr<Communicator> connect(RankGroup group, std::chrono::milliseconds) override {
    return std::make_shared<MetaCommunicator>(std::move(group));
  }
  void abort(const std::string&) override {}
  void leave() override {}

 private:
  std::int64_t rank_;
  std::int64_t num_ranks_;
};

}  // namespace

std::shared_ptr<World> meta_rank(std::int64_t rank, std::int64_t num_ranks) {
  return std::make_shared<World>(std::make_unique<MetaBackend>(rank, num_ranks));
}

}  // namespace d9d
