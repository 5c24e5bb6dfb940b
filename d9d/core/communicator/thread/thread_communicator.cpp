#include "d9d/core/communicator/thread/thread_communicator.h"

#include <numeric>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/communicator/operation.h"
#include "d9d/core/error/error_place.h"

namespace d9d {
namespace {

at::Tensor slice_of(const at::Tensor& flat, std::int64_t index, std::int64_t num_parts) {  // like torch.chunk, but even
  const std::int64_t begin = flat.numel() * index / num_parts;
  return flat.narrow(0, begin, flat.numel() * (index + 1) / num_parts - begin);
}

// Reduces in rank order, half precision in fp32, so that the result depends neither on timing nor on the rank that
// computes it.
at::Tensor reduce(const std::vector<at::Tensor>& parts, ReduceOp op) {
  const at::ScalarType dtype = parts.front().scalar_type();
  const bool is_half = dtype == at::kBFloat16 || dtype == at::kHalf;
  at::Tensor result = parts.front().to(is_half ? at::kFloat : dtype, /*non_blocking=*/false, /*copy=*/true);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        result.add_(parts[i]);
        break;
      case ReduceOp::kMax:
        at::maximum_out(result, result, parts[i].to(result.scalar_type()));
        break;
      case ReduceOp::kMin:
        at::minimum_out(result, result, parts[i].to(result.scalar_type()));
        break;
    }
  }
  if (op == ReduceOp::kAvg) result.div_(static_cast<double>(parts.size()));
  return result;
}

// target [n] <- the reduction of all ranks' slice `index`. target may itself be one of these slices. Works block by
// block, so that the sums need little additional memory.
void reduce_slice(const at::Tensor& target, const std::vector<Contribution>& all, std::int64_t index, ReduceOp op) {
  constexpr std::int64_t kBlock = 1 << 14;
  for (std::int64_t begin = 0; begin < target.numel(); begin += kBlock) {
    const std::int64_t count = std::min(kBlock, target.numel() - begin);
    std::vector<at::Tensor> parts;
    for (const Contribution& one : all) {
      parts.push_back(slice_of(one.input.view({-1}), index, std::ssize(all)).narrow(0, begin, count));
    }
    target.narrow(0, begin, count).copy_(reduce(parts, op));
  }
}

}  // namespace

template <class Read>
void ThreadCommunicator::meet(Contribution contribution, const Read& read) {
  const at::NoGradGuard no_grad;
  check_connected();
  const std::string operation = contribution.operation;
  const std::vector<Contribution>& all = rendezvous_->arrive(rank(), std::move(contribution), timeout_);
  try {
    read(all);
  } catch (const CommunicationError& error) {
    rendezvous_->abort(error.what());
    throw;
  } catch (const std::exception& error) {
    rendezvous_->abort(cat("[core::communicator] rank ", group().ranks[static_cast<std::size_t>(rank())], " failed in ",
                           operation, " of group '", group().name, "': ", error_line(error)));
    throw;
  }
  rendezvous_->leave(rank(), timeout_);
}

Work ThreadCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  meet({.operation = operation::all_reduce(*this, tensor, op), .input = tensor},
       // Each rank reduces its slice in place, then copies the other slices.
       [&](const std::vector<Contribution>& all) {
         const at::Tensor flat = tensor.view({-1});
         reduce_slice(slice_of(flat, rank(), size()), all, rank(), op);
         rendezvous_->synchronize(rank(), timeout_);
         for (std::int64_t i = 0; i < size(); ++i) {
           if (i != rank()) slice_of(flat, i, size()).copy_(slice_of(all[i].input.view({-1}), i, size()));
         }
       });
  return {};
}

Work ThreadCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input) {
  meet({.operation = operation::all_gather(*this, output, input), .input = input},
       [&](const std::vector<Contribution>& all) {
         for (std::int64_t i = 0; i < size(); ++i) {
           const at::Tensor place = slice_of(output.view({-1}), i, size());
           if (place.const_data_ptr() != all[i].input.const_data_ptr()) place.copy_(all[i].input.view({-1}));
         }
       });
  return {};
}

Work ThreadCommunicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  meet({.operation = operation::reduce_scatter(*this, output, input, op), .input = input},
       [&](const std::vector<Contribution>& all) { reduce_slice(output.view({-1}), all, rank(), op); });
  return {};
}

Work ThreadCommunicator::all_to_all(const at::Tensor& output, const at::Tensor& input,
                                    const std::vector<std::int64_t>& output_splits,
                                    const std::vector<std::int64_t>& input_splits) {
  meet({.operation = operation::all_to_all(*this, output, input, output_splits, input_splits),
        .input = input,
        .splits = input_splits},
       [&](const std::vector<Contribution>& all) {
         std::int64_t row = 0;
         for (std::int64_t i = 0; i < size(); ++i) {
           const std::vector<std::int64_t>& theirs = all[i].splits;
           const std::int64_t begin = std::accumulate(theirs.begin(), theirs.begin() + rank(), std::int64_t{0});
           D9D_CHECK(theirs[rank()] == output_splits[i], CommunicationError, "[core::communicator] rank ",
                     group().ranks[static_cast<std::size_t>(rank())], " in all_to_all of group '", group().name,
                     "' expected ", output_splits[i], " rows from rank ", group().ranks[static_cast<std::size_t>(i)],
                     ", got ", theirs[rank()], ".");
           output.narrow(0, row, output_splits[i]).copy_(all[i].input.narrow(0, begin, output_splits[i]));
           row += output_splits[i];
         }
       });
  return {};
}

Work ThreadCommunicator::broadcast(const at::Tensor& tensor, std::int64_t root) {
  meet({.operation = operation::broadcast(*this, tensor, root), .input = tensor},
       [&](const std::vector<Contribution>& all) {
         if (rank() != root) tensor.copy_(all[root].input);
       });
  return {};
}

Work ThreadCommunicator::gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input, std::int64_t root) {
  meet({.operation = operation::gather(*this, outputs, input, root), .input = input},
       [&](const std::vector<Contribution>& all) {
         for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(all[i].input);
       });
  return {};
}

Work ThreadCommunicator::scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, std::int64_t root) {
  meet({.operation = operation::scatter(*this, output, inputs, root), .inputs = inputs},
       [&](const std::vector<Contribution>& all) { output.copy_(all[root].inputs[rank()]); });
  return {};
}

Work ThreadCommunicator::exchange(const std::vector<PointToPoint>& messages) {
  const at::NoGradGuard no_grad;
  check_connected();
  for (const PointToPoint& message : messages) {
    (void)operation::message(*this, message);
    if (message.direction == PointToPoint::Direction::kSend) {
      // Sends a copy, since the sender does not wait for the receiver.
      rendezvous_->send(rank(), message.peer, message.tensor.clone());
    }
  }
  for (const PointToPoint& message : messages) {
    if (message.direction == PointToPoint::Direction::kSend) continue;
    const std::string operation = operation::message(*this, message);
    const at::Tensor received = rendezvous_->receive(message.peer, rank(), operation, timeout_);
    D9D_CHECK(received.sizes() == message.tensor.sizes() && received.scalar_type() == message.tensor.scalar_type(),
              CommunicationError, "[core::communicator] rank ", group().ranks[static_cast<std::size_t>(rank())],
              " expected ", operation, " in group '", group().name, "', got ", received.scalar_type(), " ",
              received.sizes(), ".");
    message.tensor.copy_(received);
  }
  return {};
}

void ThreadCommunicator::barrier() {
  meet({.operation = "barrier()"}, [](const std::vector<Contribution>& /*all*/) {});
}

// Threads hold nothing to give back; operations are refused as those of the other backends.
void ThreadCommunicator::disconnect() {
  meet({.operation = "disconnect()"}, [](const std::vector<Contribution>& /*all*/) {});
  is_connected_ = false;
}

void ThreadCommunicator::reconnect() {
  is_connected_ = true;
  meet({.operation = "reconnect()"}, [](const std::vector<Contribution>& /*all*/) {});
}

void ThreadCommunicator::check_connected() const {
  D9D_CHECK(is_connected_, StateError, "[core::communicator] expected group '", group().name,
            "' to be connected, got an operation while the communicators sleep. Call ",
            "wake() of the job that put them to sleep, or World::reconnect() if that job is gone.");
}

}  // namespace d9d
