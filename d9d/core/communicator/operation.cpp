#include "d9d/core/communicator/operation.h"

#include <numeric>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::operation {
namespace {

std::string describe(const at::Tensor& tensor) { return cat(tensor.scalar_type(), " ", tensor.sizes()); }

void check_tensor(const Communicator& group, const char* operation, const at::Tensor& tensor) {
  D9D_CHECK(tensor.is_contiguous() && tensor.device() == group.device(), ConfigError, "[core::communicator] ",
            operation, " expected contiguous tensors on ", group.device().str(), ", got ", describe(tensor),
            tensor.is_contiguous() ? "" : " that is not contiguous", " on ", tensor.device().str(),
            ". Call contiguous() or move it.");
}

void check_parts(const Communicator& group, const char* operation, const at::Tensor& whole, const at::Tensor& part) {
  check_tensor(group, operation, whole);
  check_tensor(group, operation, part);
  D9D_CHECK(whole.numel() == part.numel() * group.size() && whole.scalar_type() == part.scalar_type(), ConfigError,
            "[core::communicator] ", operation, " expected ", group.size(), " times the elements of ", describe(part),
            ", got ", describe(whole), ".");
}

void check_op(const char* operation, const at::Tensor& tensor, ReduceOp op) {
  D9D_CHECK(op != ReduceOp::kAvg || tensor.is_floating_point(), ConfigError, "[core::communicator] ", operation,
            "(avg) expected a floating point dtype, got ", tensor.scalar_type(), ". Use sum and divide.");
}

void check_root(const Communicator& group, const char* operation, std::int64_t root) {
  D9D_CHECK(root >= 0 && root < group.size(), ConfigError, "[core::communicator] ", operation,
            " expected a root in [0, ", group.size(), ") of group '", group.group().name, "', got ", root, ".");
}

// Checks the list of tensors of the root of a gather or scatter: one a rank, each like `own`.
void check_list(const Communicator& group, const char* operation, const std::vector<at::Tensor>& tensors,
                const at::Tensor& own, std::int64_t root) {
  check_root(group, operation, root);
  check_tensor(group, operation, own);
  D9D_CHECK(std::ssize(tensors) == (group.rank() == root ? group.size() : 0), ConfigError, "[core::communicator] ",
            operation, " expected ", group.size(), " tensors on the root and none elsewhere, got ", tensors.size(),
            ".");
  for (const at::Tensor& tensor : tensors) {
    check_tensor(group, operation, tensor);
    D9D_CHECK(tensor.sizes() == own.sizes() && tensor.scalar_type() == own.scalar_type(), ConfigError,
              "[core::communicator] ", operation, " expected tensors like ", describe(own), ", got ", describe(tensor),
              ".");
  }
}

}  // namespace

std::string all_reduce(const Communicator& group, const at::Tensor& tensor, ReduceOp op) {
  check_tensor(group, "all_reduce", tensor);
  check_op("all_reduce", tensor, op);
  return cat("all_reduce(", to_string(op), ", ", describe(tensor), ")");
}

std::string all_gather(const Communicator& group, const at::Tensor& output, const at::Tensor& input) {
  check_parts(group, "all_gather", output, input);
  return cat("all_gather(", describe(input), ")");
}

std::string reduce_scatter(const Communicator& group, const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  check_parts(group, "reduce_scatter", input, output);
  check_op("reduce_scatter", input, op);
  return cat("reduce_scatter(", to_string(op), ", ", describe(input), ")");
}

std::string all_to_all(const Communicator& group, const at::Tensor& output, const at::Tensor& input,
                       const std::vector<std::int64_t>& output_splits, const std::vector<std::int64_t>& input_splits) {
  check_tensor(group, "all_to_all", output);
  check_tensor(group, "all_to_all", input);
  const auto fit = [&](const at::Tensor& tensor, const std::vector<std::int64_t>& splits) {
    return std::ssize(splits) == group.size() && tensor.dim() > 0 &&
           std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) == tensor.size(0) &&
           std::all_of(splits.begin(), splits.end(), [](std::int64_t rows) { return rows >= 0; });
  };
  D9D_CHECK(fit(output, output_splits) && fit(input, input_splits), ConfigError,
            "[core::communicator] all_to_all expected ", group.size(), " splits each that sum to the rows of ",
            describe(output), " and ", describe(input), ", got ", at::IntArrayRef(output_splits), " and ",
            at::IntArrayRef(input_splits), ".");
  D9D_CHECK(output.scalar_type() == input.scalar_type() && output.sizes().slice(1) == input.sizes().slice(1),
            ConfigError, "[core::communicator] all_to_all expected rows of one dtype and shape, got ", describe(output),
            " and ", describe(input), ".");
  return cat("all_to_all(", input.scalar_type(), " [*", (input.dim() > 1 ? ", " : ""), input.sizes().slice(1), "])");
}

std::string broadcast(const Communicator& group, const at::Tensor& tensor, std::int64_t root) {
  check_tensor(group, "broadcast", tensor);
  check_root(group, "broadcast", root);
  return cat("broadcast(from ", root, ", ", describe(tensor), ")");
}

std::string gather(const Communicator& group, const std::vector<at::Tensor>& outputs, const at::Tensor& input,
                   std::int64_t root) {
  check_list(group, "gather", outputs, input, root);
  return cat("gather(to ", root, ", ", describe(input), ")");
}

std::string scatter(const Communicator& group, const at::Tensor& output, const std::vector<at::Tensor>& inputs,
                    std::int64_t root) {
  check_list(group, "scatter", inputs, output, root);
  return cat("scatter(from ", root, ", ", describe(output), ")");
}

std::string message(const Communicator& group, const PointToPoint& message) {
  check_tensor(group, "exchange", message.tensor);
  D9D_CHECK(message.peer >= 0 && message.peer < group.size(), ConfigError,
            "[core::communicator] exchange expected a peer in [0, ", group.size(), ") of group '", group.group().name,
            "', got ", message.peer, ".");
  const bool is_send = message.direction == PointToPoint::Direction::kSend;
  return cat(is_send ? "send(" : "receive(", describe(message.tensor), is_send ? ") to rank " : ") from rank ",
             group.group().ranks[static_cast<std::size_t>(message.peer)]);
}

}  // namespace d9d::operation
