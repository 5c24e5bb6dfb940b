#include "d9d/core/communicator/process_group/process_group_communicator.h"

#include <deque>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"
#include "d9d/core/communicator/long_wait.h"
#include "d9d/core/communicator/operation.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/process_group/process_group_backend.h"
#include "d9d/core/communicator/process_group/start_lock.h"

namespace d9d {
namespace {

using Direction = PointToPoint::Direction;

c10d::ReduceOp c10d_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kAvg:
      return c10d::ReduceOp::AVG;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      break;
  }
  return c10d::ReduceOp::MIN;
}

// The first line of the error, without the source location that c10d and Gloo put before it.
std::string one_line(const std::exception& error) {
  const auto* const from_c10 = dynamic_cast<const c10::Error*>(&error);
  std::string text = from_c10 != nullptr ? from_c10->what_without_backtrace() : error.what();
  text.erase(std::min(text.find('\n'), text.size()));
  const std::size_t end = text.rfind("] ", text.find(".cc:") == 0 ? 0 : std::min(text.size(), text.find(".cc:") + 12));
  if (text.starts_with('[') && text.find(".cc:") != std::string::npos && end != std::string::npos)
    text.erase(0, end + 2);
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string describe(const at::Tensor& tensor) { return cat(tensor.scalar_type(), " ", tensor.sizes()); }

// Returns the tensor without its autograd graph, for a process group: a thread of the group may be the last owner of
// the tensor, and must not free a graph.
at::Tensor without_graph(const at::Tensor& tensor) { return tensor.variable_data(); }
std::vector<at::Tensor> without_graph(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(without_graph(tensor));
  return result;
}

Work wait_for_stream_of(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const auto event = std::make_shared<c10::Event>(device.type());
  event->record(guard.getStream(device));
  return Work([event, device] {
    const c10::impl::VirtualGuardImpl current(device.type());
    event->block(current.getStream(device));
  });
}

}  // namespace

ProcessGroupCommunicator::ProcessGroupCommunicator(std::shared_ptr<GroupState> state, std::shared_ptr<Watchdog> watch,
                                                   ProcessGroupBackend& backend, std::chrono::milliseconds timeout)
    : Communicator(state->group()),
      state_(std::move(state)),
      watch_(std::move(watch)),
      backend_(backend),
      device_(backend.device()) {
  set_timeout(timeout);
}

void ProcessGroupCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  if (state_->is_open()) state_->backend().setTimeout(timeout);
}

void ProcessGroupCommunicator::disconnect() {
  throw_if_failed();
  backend_.meet(group(), "disconnecting", timeout_);
  state_->close();
}

void ProcessGroupCommunicator::reconnect() {
  state_->open(backend_.make_group(group(), timeout_));
  num_sent_.clear();
  num_received_.clear();
  set_timeout(timeout_);
}

void ProcessGroupCommunicator::Call::fail(const std::string& cause) const {
  FailedOperation failed = operation;
  failed.cause = cause;
  const GroupFailure failure = watch->explain(*state, failed);
  const std::string here = cat("rank ", state->job_rank(), " ", operation.where);
  const bool names_here = failure.reason.starts_with(here);
  const std::string text =
      cat("[core::communicator] ", names_here ? "" : cat(here, " of group '", state->group().name, "' failed: "),
          failure.reason);
  if (failure.is_own) throw CommunicationError(text);
  // This rank's own reason has priority: the rank that reported the other reason may have failed because of this one.
  if (const auto own = watch->own_reason()) throw CommunicationError(cat("[core::communicator] ", *own));
  throw PeerFailedError(text);
}

template <class Action>
auto ProcessGroupCommunicator::Call::run(const Action& action) const {
  try {
    return action();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(one_line(error));
  }
}

ProcessGroupCommunicator::C10dWork ProcessGroupCommunicator::Call::start(
    const std::function<C10dWork()>& action) const {
  return run([&] {
    const auto lock = lock_starts();
    return action();
  });
}

bool ProcessGroupCommunicator::Call::wait(c10d::Work& work) const {
  const std::chrono::milliseconds patience = long_wait(operation.timeout);
  return state->wait(work, patience, [&] { watch->tell_who_is_missing(*state, operation, patience); });
}

ProcessGroupCommunicator::Call ProcessGroupCommunicator::call_at(std::string where) const {
  return {.state = state_, .watch = watch_, .operation = {.where = std::move(where), .cause = "", .timeout = timeout_}};
}

ProcessGroupCommunicator::Call ProcessGroupCommunicator::begin(const std::string& operation) {
  state_->check_open();
  Call call = call_at(to_string(state_->begin(operation)));
  check_alive(call);
  return call;
}

void ProcessGroupCommunicator::throw_if_failed() { check_alive(call_at(to_string(state_->position()))); }

bool ProcessGroupCommunicator::has_failed() const {
  return state_->failure() || (!device_.is_cpu() && state_->has_backend_failed());
}

void ProcessGroupCommunicator::check_alive(const Call& call) const {
  if (state_->failure()) call.fail("");
  if (device_.is_cpu() || !state_->is_open()) return;  // CPU operations report their failures themselves
  switch (state_->backend().getError()) {
    case c10d::ErrorType::SUCCESS:
      return;
    case c10d::ErrorType::TIMEOUT:
      call.fail("an earlier operation timed out");
    case c10d::ErrorType::COMM_ERROR:
    case c10d::ErrorType::REMOTE_ERROR:
      call.fail("an earlier operation lost its connection");
  }
}

std::vector<std::int64_t> ProcessGroupCommunicator::gather_numbers(const Call& call,
                                                                   const std::vector<std::int64_t>& mine) {
  const at::Tensor input = at::tensor(mine, at::kLong);
  const at::Tensor output = at::empty({size() * input.numel()}, at::kLong);
  c10d::AllgatherOptions options;
  options.timeout = timeout_;
  at::Tensor whole = output;
  at::Tensor part = input;
  const C10dWork work = call.start([&] { return state_->backend()._allgather_base(whole, part, options); });
  call.run([&] { return call.wait(*work); });
  return {output.const_data_ptr<std::int64_t>(), output.const_data_ptr<std::int64_t>() + output.numel()};
}

// Gloo ends the process if messages differ in size. Ranks therefore compare their operations first.
void ProcessGroupCommunicator::check_same_on_all_ranks(const Call& call) {
  if (!device_.is_cpu() || size() == 1) return;
  const auto mine = static_cast<std::int64_t>(fnv1a(call.operation.where));
  for (const std::int64_t theirs : gather_numbers(call, {mine})) {
    if (theirs != mine) call.fail("ranks called different operations");
  }
}

void ProcessGroupCommunicator::check_splits(const Call& call, const std::vector<std::int64_t>& output_splits,
                                            const std::vector<std::int64_t>& input_splits) {
  if (!device_.is_cpu() || size() == 1) return;
  const std::vector<std::int64_t> all = gather_numbers(call, input_splits);
  for (std::int64_t i = 0; i < size(); ++i) {
    const std::int64_t theirs = all[static_cast<std::size_t>(i * size() + rank())];
    const std::int64_t mine = output_splits[static_cast<std::size_t>(i)];
    if (theirs != mine) {
      call.fail(
          cat("expected ", mine, " rows from rank ", group().ranks[static_cast<std::size_t>(i)], ", got ", theirs));
    }
  }
}

Work ProcessGroupCommunicator::start(const std::string& operation, bool is_empty, const StartCollective& action) {
  const at::NoGradGuard no_grad;
  Call call = begin(operation);
  check_same_on_all_ranks(call);
  if (is_empty) return {};
  return finish(call, call.start(action));
}

Work ProcessGroupCommunicator::finish(Call call, C10dWork work) const {
  if (!device_.is_cpu()) return wait_for_stream_of(device_);
  return Work([call = std::move(call), work] {
    if (!call.run([&] { return call.wait(*work); })) call.fail("aborted");
  });
}

Work ProcessGroupCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  return start(operation::all_reduce(*this, tensor, op), tensor.numel() == 0, [&] {
    c10d::AllreduceOptions options;
    options.reduceOp = c10d_op(op);
    options.timeout = timeout_;
    options.asyncOp = device_.is_cpu();
    std::vector<at::Tensor> tensors = {without_graph(tensor)};
    return state_->backend().allreduce(tensors, options);
  });
}

Work ProcessGroupCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input) {
  return start(operation::all_gather(*this, output, input), output.numel() == 0, [&] {
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    options.asyncOp = device_.is_cpu();
    at::Tensor whole = without_graph(output).view({-1});
    at::Tensor part = without_graph(input).view({-1});
    return state_->backend()._allgather_base(whole, part, options);
  });
}

Work ProcessGroupCommunicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  return start(operation::reduce_scatter(*this, output, input, op), input.numel() == 0, [&] {
    c10d::ReduceScatterOptions options;
    options.reduceOp = c10d_op(op);
    options.timeout = timeout_;
    options.asyncOp = device_.is_cpu();
    at::Tensor part = without_graph(output).view({-1});
    at::Tensor whole = without_graph(input).view({-1});
    return state_->backend()._reduce_scatter_base(part, whole, options);
  });
}

Work ProcessGroupCommunicator::all_to_all(const at::Tensor& output, const at::Tensor& input,
                                          const std::vector<std::int64_t>& output_splits,
                                          const std::vector<std::int64_t>& input_splits) {
  const at::NoGradGuard no_grad;
  Call call = begin(operation::all_to_all(*this, output, input, output_splits, input_splits));
  check_same_on_all_ranks(call);
  check_splits(call, output_splits, input_splits);
  return finish(call, call.start([&] {
    c10d::AllToAllOptions options;
    options.timeout = timeout_;
    options.asyncOp = device_.is_cpu();
    at::Tensor received = without_graph(output);
    at::Tensor sent = without_graph(input);
    std::vector<std::int64_t> received_rows = output_splits;
    std::vector<std::int64_t> sent_rows = input_splits;
    return state_->backend().alltoall_base(received, sent, received_rows, sent_rows, options);
  }));
}

Work ProcessGroupCommunicator::broadcast(const at::Tensor& tensor, std::int64_t root) {
  return start(operation::broadcast(*this, tensor, root), tensor.numel() == 0, [&] {
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    options.asyncOp = device_.is_cpu();
    std::vector<at::Tensor> tensors = {without_graph(tensor)};
    return state_->backend().broadcast(tensors, options);
  });
}

Work ProcessGroupCommunicator::gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                                      std::int64_t root) {
  return start(operation::gather(*this, outputs, input, root), input.numel() == 0, [&] {
    c10d::GatherOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    options.asyncOp = device_.is_cpu();
    std::vector<std::vector<at::Tensor>> received;
    if (rank() == root) received.push_back(without_graph(outputs));
    std::vector<at::Tensor> sent = {without_graph(input)};
    return state_->backend().gather(received, sent, options);
  });
}

Work ProcessGroupCommunicator::scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                                       std::int64_t root) {
  return start(operation::scatter(*this, output, inputs, root), output.numel() == 0, [&] {
    c10d::ScatterOptions options;
    options.rootRank = root;
    options.timeout = timeout_;
    options.asyncOp = device_.is_cpu();
    std::vector<std::vector<at::Tensor>> sent;
    if (rank() == root) sent.push_back(without_graph(inputs));
    std::vector<at::Tensor> received = {without_graph(output)};
    return state_->backend().scatter(received, sent, options);
  });
}

void ProcessGroupCommunicator::barrier() {
  const Call call = begin("barrier()");
  if (device_.is_cpu()) return check_same_on_all_ranks(call);  // waits until all ranks have called it
  c10d::BarrierOptions options;
  options.timeout = timeout_;
  options.device = device_;
  if (device_.has_index()) options.device_ids = {device_.index()};
  const C10dWork work = call.start([&] { return state_->backend().barrier(options); });
  if (!call.run([&] { return work->wait(); })) call.fail("aborted");
}

Work ProcessGroupCommunicator::exchange(const std::vector<PointToPoint>& messages) {
  const at::NoGradGuard no_grad;
  state_->check_open();
  // Exchanges have a counter of their own, because not all ranks call them.
  Call call = call_at(cat("at exchange ", ++num_exchanges_));
  check_alive(call);
  return state_->backend().supportsCoalescing() ? exchange_at_once(call, messages)
                                                : exchange_one_by_one(std::move(call), messages);
}

Work ProcessGroupCommunicator::exchange_at_once(const Call& call, const std::vector<PointToPoint>& messages) {
  const C10dWork work = call.start([&] {
    c10d::Backend& backend = state_->backend();
    backend.startCoalescing();
    for (const PointToPoint& message : messages) {
      (void)operation::message(*this, message);
      std::vector<at::Tensor> tensors = {without_graph(message.tensor)};
      const int peer = static_cast<int>(message.peer);
      if (message.direction == Direction::kSend) backend.send(tensors, peer, 0);
      if (message.direction == Direction::kReceive) backend.recv(tensors, peer, 0);
    }
    return backend.endCoalescing();
  });
  if (work) call.run([&] { return work->wait(); });
  return wait_for_stream_of(device_);
}

Work ProcessGroupCommunicator::exchange_one_by_one(Call call, const std::vector<PointToPoint>& messages) {
  struct Started {
    Call call;
    C10dWork work;
  };
  std::vector<Started> all;
  std::deque<at::Tensor> to_self;
  for (const PointToPoint& message : messages) {
    call.operation.awaited = operation::message(*this, message);
    call.operation.where = cat("at exchange ", num_exchanges_, " ", *call.operation.awaited);
    const bool is_send = message.direction == Direction::kSend;
    if (message.peer == rank()) {
      if (is_send) to_self.push_back(message.tensor);
      continue;
    }
    if (message.tensor.numel() == 0) continue;
    std::vector<at::Tensor> tensors = {without_graph(message.tensor)};
    // The tag depends on shape and dtype, so that a message other than the receiver expects never matches: Gloo would
    // end the process.
    int& number = (is_send ? num_sent_ : num_received_)[message.peer];
    const int tag = (number++ & 0xfff) << 18 | static_cast<int>(fnv1a(describe(message.tensor)) & 0x3ffff);
    const int peer = static_cast<int>(message.peer);
    c10d::Backend& backend = state_->backend();
    all.push_back({call, call.start([&] {
                     return is_send ? backend.send(tensors, peer, tag) : backend.recv(tensors, peer, tag);
                   })});
    state_->abort_on_failure(all.back().work);
  }
  for (const PointToPoint& message : messages) {
    if (message.peer != rank() || message.direction == Direction::kSend) continue;
    D9D_CHECK(!to_self.empty(), ConfigError, "[core::communicator] rank ", state_->job_rank(),
              " expected a message to itself for each that it receives from itself, got too few.");
    message.tensor.copy_(to_self.front());
    to_self.pop_front();
  }
  return Work([all = std::move(all)] {
    for (const Started& one : all) {
      const auto timeout = one.call.operation.timeout;
      if (!one.call.run([&] { return one.work->wait(timeout); })) one.call.fail("aborted");
    }
  });
}

}  // namespace d9d
