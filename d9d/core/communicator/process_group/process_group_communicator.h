// A communicator over one of LibTorch's process groups.
//
// CPU tensors (Gloo): operations run on threads of the group; wait() returns when the results are ready. CUDA tensors
// (NCCL): operations are queued on the stream that is current at the call; wait() makes the stream that is current at
// that time wait for them; a later operation reports a failure.
//
// Gloo would end the process if messages differed in size. Therefore ranks first exchange a hash of the operation:
// starting an operation waits until all ranks of the group have reached it. Messages of exchange() that differ never
// match, and time out. On CUDA none of this is checked.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/communicator/process_group/group_state.h"
#include "d9d/core/communicator/process_group/watchdog.h"

namespace c10d {
class Work;
}

namespace d9d {

class ProcessGroupBackend;

class ProcessGroupCommunicator final : public Communicator {
 public:
  // backend: borrowed; used by disconnect() and reconnect() only.
  ProcessGroupCommunicator(std::shared_ptr<GroupState> state, std::shared_ptr<Watchdog> watch,
                           ProcessGroupBackend& backend, std::chrono::milliseconds timeout);

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
  void throw_if_failed() override;
  [[nodiscard]] bool has_failed() const override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  void abort(const std::string& reason) override { watch_->abort_group(*state_, reason); }
  void disconnect() override;
  void reconnect() override;

 private:
  using C10dWork = c10::intrusive_ptr<c10d::Work>;

  // The data that an operation needs to report its failure.
  struct Call {
    std::shared_ptr<GroupState> state;
    std::shared_ptr<Watchdog> watch;
    FailedOperation operation;

    template <class Action>
    auto run(const Action& action) const;  // runs the action; rethrows its errors as CommunicationError
    [[nodiscard]] C10dWork start(const std::function<C10dWork()>& action) const;
    [[nodiscard]] bool wait(c10d::Work& work) const;  // CPU tensors only; a long wait logs the missing ranks
    [[noreturn]] void fail(const std::string& cause) const;
  };

  [[nodiscard]] Call begin(const std::string& operation);
  [[nodiscard]] Call call_at(std::string where) const;
  void check_alive(const Call& call) const;
  // Concatenates `mine` of all ranks. CPU only.
  [[nodiscard]] std::vector<std::int64_t> gather_numbers(const Call& call, const std::vector<std::int64_t>& mine);
  void check_same_on_all_ranks(const Call& call);
  void check_splits(const Call& call, const std::vector<std::int64_t>& output_splits,
                    const std::vector<std::int64_t>& input_splits);
  // Starts a collective. An empty one (no elements on any rank) is complete immediately.
  using StartCollective = std::function<C10dWork()>;
  [[nodiscard]] Work start(const std::string& operation, bool is_empty, const StartCollective& action);
  [[nodiscard]] Work finish(Call call, C10dWork work) const;
  [[nodiscard]] Work exchange_one_by_one(Call call, const std::vector<PointToPoint>& messages);
  [[nodiscard]] Work exchange_at_once(const Call& call, const std::vector<PointToPoint>& messages);

  std::shared_ptr<GroupState> state_;
  std::shared_ptr<Watchdog> watch_;
  ProcessGroupBackend& backend_;
  at::Device device_;
  std::chrono::milliseconds timeout_;
  std::int64_t num_exchanges_ = 0;
  std::map<std::int64_t, int> num_sent_;  // number of messages by peer, for their tags
  std::map<std::int64_t, int> num_received_;
};

}  // namespace d9d
