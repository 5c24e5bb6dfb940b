// Collectives among threads: every rank reads the tensors that its peers posted.
#pragma once

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/communicator/thread/thread_rendezvous.h"

namespace d9d {

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(RankGroup group, std::shared_ptr<ThreadRendezvous> rendezvous, at::Device device,
                     std::chrono::milliseconds timeout)
      : Communicator(std::move(group)), rendezvous_(std::move(rendezvous)), device_(device), timeout_(timeout) {}

  [[nodiscard]] at::Device device() const override { return device_; }
  [[nodiscard]] Work all_reduce(const at::Tensor& tensor, ReduceOp op) override;
  [[nodiscard]] Work all_gather(const at::Tensor& output, const at::Tensor& input) override;
  [[nodiscard]] Work reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) override;
  [[nodiscard]] Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                                const std::vector<std::int64_t>& output_splits,
                                const std::vector<std::int64_t>& input_splits) override;
  [[nodiscard]] Work broadcast(const at::Tensor& tensor, std::int64_t root) override;
  [[nodiscard]] Work gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                            std::int64_t root) override;
  [[nodiscard]] Work scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                             std::int64_t root) override;
  [[nodiscard]] Work exchange(const std::vector<PointToPoint>& messages) override;
  void barrier() override;
  void throw_if_rank_is_gone() override { rendezvous_->check_nobody_left(rank()); }
  void set_timeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }
  void abort(const std::string& reason) override { rendezvous_->abort(reason); }
  void disconnect() override;
  void reconnect() override;

 private:
  // Runs arrive, read(contributions), leave. An exception in read fails the group.
  template <class Read>
  void meet(Contribution contribution, const Read& read);

  void check_connected() const;

  std::shared_ptr<ThreadRendezvous> rendezvous_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  bool is_connected_ = true;
};

}  // namespace d9d
