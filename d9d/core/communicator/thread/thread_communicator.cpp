#include "d9d/core/communicator/thread/thread_communicator.h"

#include <numeric>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string describe(const at::Tensor& tensor) { return cat(tensor.scalar_type(), " ", tensor.sizes()); }

at::Tensor slice_of(const at::Tensor& flat, std::int64_t index, std::int64_t num_parts) {  // like torch.chunk, but even
  const std::int64_t begin = flat.numel() * index / num_parts;
  return flat.narrow(0, begin, flat.numel() * (index + 1) / num_parts - begin);
}

// In the order of ranks, half precision in fp32: the result does not depend on timing, nor on which rank computes it.
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

at::Tensor reduce_slice(const std::vector<Contribution>& all, std::int64_t index, ReduceOp op) {
  std::vector<at::Tensor> parts;
  for (const Contribution& one : all) parts.push_back(slice_of(one.input.view({-1}), index, std::ssize(all)));
  return reduce(parts, op);
}

}  // namespace

void ThreadCommunicator::check_tensor(const char* operation, const at::Tensor& tensor) const {
  D9D_CHECK(tensor.is_contiguous() && tensor.device() == device_, ConfigError, "[core::communicator] ", operation,
            " expected contiguous tensors on ", device_.str(), ", got ", describe(tensor), " on ",
            tensor.device().str(), ". Call contiguous().");
}

void ThreadCommunicator::check_rows(const char* operation, const at::Tensor& whole, const at::Tensor& part) const {
  check_tensor(operation, whole);
  check_tensor(operation, part);
  D9D_CHECK(whole.numel() == part.numel() * size() && whole.scalar_type() == part.scalar_type(), ConfigError,
            "[core::communicator] ", operation, " expected ", size(), " times the elements of ", describe(part),
            ", got ", describe(whole), ".");
}

template <class Read>
void ThreadCommunicator::meet(Contribution contribution, const Read& read) {
  const at::NoGradGuard no_grad;
  const std::string operation = contribution.operation;
  const std::vector<Contribution>& all = meeting_->arrive(rank(), std::move(contribution), timeout_);
  try {
    read(all);
  } catch (const std::exception& error) {
    meeting_->abort(cat("rank ", group().ranks[static_cast<std::size_t>(rank())], " failed in ", operation, ": ",
                        error.what()));
    throw;
  }
  meeting_->leave(rank(), timeout_);
}

Work ThreadCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  check_tensor("all_reduce", tensor);
  meet({.operation = cat("all_reduce(", to_string(op), ", ", describe(tensor), ")"), .input = tensor},
       [&](const std::vector<Contribution>& all) {  // each reduces its slice in place, then all copy each other's
         const at::Tensor flat = tensor.view({-1});
         slice_of(flat, rank(), size()).copy_(reduce_slice(all, rank(), op));
         meeting_->synchronize(rank(), timeout_);
         for (std::int64_t i = 0; i < size(); ++i) {
           if (i != rank()) slice_of(flat, i, size()).copy_(slice_of(all[i].input.view({-1}), i, size()));
         }
       });
  return {};
}

Work ThreadCommunicator::all_gather(const at::Tensor& output, const at::Tensor& input) {
  check_rows("all_gather", output, input);
  meet({.operation = cat("all_gather(", describe(input), ")"), .input = input},
       [&](const std::vector<Contribution>& all) {
         for (std::int64_t i = 0; i < size(); ++i) {
           const at::Tensor place = slice_of(output.view({-1}), i, size());
           if (place.const_data_ptr() != all[i].input.const_data_ptr()) place.copy_(all[i].input.view({-1}));
         }
       });
  return {};
}

Work ThreadCommunicator::reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  check_rows("reduce_scatter", input, output);
  meet({.operation = cat("reduce_scatter(", to_string(op), ", ", describe(input), ")"), .input = input},
       [&](const std::vector<Contribution>& all) { output.view({-1}).copy_(reduce_slice(all, rank(), op)); });
  return {};
}

Work ThreadCommunicator::all_to_all(const at::Tensor& output, const at::Tensor& input,
                                    const std::vector<std::int64_t>& output_splits,
                                    const std::vector<std::int64_t>& input_splits) {
  check_tensor("all_to_all", output);
  check_tensor("all_to_all", input);
  const auto sum = [](const std::vector<std::int64_t>& splits) {
    return std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
  };
  D9D_CHECK(std::ssize(output_splits) == size() && std::ssize(input_splits) == size() &&
                sum(output_splits) == output.size(0) && sum(input_splits) == input.size(0),
            ConfigError, "[core::communicator] all_to_all expected ", size(), " splits that sum to ", output.size(0),
            " and ", input.size(0), " rows, got ", at::IntArrayRef(output_splits), " and ",
            at::IntArrayRef(input_splits), ".");
  meet({.operation = cat("all_to_all(", input.scalar_type(), " [*", (input.dim() > 1 ? ", " : ""),
                         input.sizes().slice(1), "])"),
        .input = input,
        .splits = input_splits},
       [&](const std::vector<Contribution>& all) {
         std::int64_t row = 0;
         for (std::int64_t i = 0; i < size(); ++i) {
           const std::vector<std::int64_t>& theirs = all[i].splits;
           const std::int64_t begin = std::accumulate(theirs.begin(), theirs.begin() + rank(), std::int64_t{0});
           D9D_CHECK(theirs[rank()] == output_splits[i], CommunicationError, "expected ", output_splits[i],
                     " rows from rank ", group().ranks[static_cast<std::size_t>(i)], ", got ", theirs[rank()], ".");
           output.narrow(0, row, output_splits[i]).copy_(all[i].input.narrow(0, begin, output_splits[i]));
           row += output_splits[i];
         }
       });
  return {};
}

Work ThreadCommunicator::broadcast(const at::Tensor& tensor, std::int64_t root) {
  check_tensor("broadcast", tensor);
  meet({.operation = cat("broadcast(from ", root, ", ", describe(tensor), ")"), .input = tensor},
       [&](const std::vector<Contribution>& all) {
         if (rank() != root) tensor.copy_(all[root].input);
       });
  return {};
}

Work ThreadCommunicator::gather(const std::vector<at::Tensor>& outputs, const at::Tensor& input, std::int64_t root) {
  check_tensor("gather", input);
  D9D_CHECK(std::ssize(outputs) == (rank() == root ? size() : 0), ConfigError,
            "[core::communicator] gather expected an output a rank on the root and none elsewhere, got ",
            outputs.size(), ".");
  meet({.operation = cat("gather(to ", root, ", ", describe(input), ")"), .input = input},
       [&](const std::vector<Contribution>& all) {
         for (std::size_t i = 0; i < outputs.size(); ++i) outputs[i].copy_(all[i].input);
       });
  return {};
}

Work ThreadCommunicator::scatter(const at::Tensor& output, const std::vector<at::Tensor>& inputs, std::int64_t root) {
  check_tensor("scatter", output);
  D9D_CHECK(std::ssize(inputs) == (rank() == root ? size() : 0), ConfigError,
            "[core::communicator] scatter expected an input a rank on the root and none elsewhere, got ",
            inputs.size(), ".");
  meet({.operation = cat("scatter(from ", root, ", ", describe(output), ")"), .inputs = inputs},
       [&](const std::vector<Contribution>& all) { output.copy_(all[root].inputs[rank()]); });
  return {};
}

Work ThreadCommunicator::exchange(const std::vector<PointToPoint>& messages) {
  const at::NoGradGuard no_grad;
  for (const PointToPoint& message : messages) {
    check_tensor("exchange", message.tensor);
    if (message.direction == PointToPoint::Direction::kSend) {
      meeting_->send(rank(), message.peer, message.tensor.clone());  // a copy: the sender goes on
    }
  }
  for (const PointToPoint& message : messages) {
    if (message.direction == PointToPoint::Direction::kSend) continue;
    const std::string operation = cat("receive(", describe(message.tensor), ")");
    const at::Tensor received = meeting_->receive(message.peer, rank(), operation, timeout_);
    D9D_CHECK(received.sizes() == message.tensor.sizes() && received.scalar_type() == message.tensor.scalar_type(),
              CommunicationError, "[core::communicator] rank ", group().ranks[static_cast<std::size_t>(rank())],
              " expected ", describe(message.tensor), " from rank ",
              group().ranks[static_cast<std::size_t>(message.peer)], " of group '", group().name, "', got ",
              describe(received), ".");
    message.tensor.copy_(received);
  }
  return {};
}

void ThreadCommunicator::barrier() {
  meet({.operation = "barrier()"}, [](const std::vector<Contribution>& /*all*/) {});
}

}  // namespace d9d
