#include "d9d/core/collectives/gather.h"

#include <algorithm>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/communicator/to_host.h"

namespace d9d {
namespace {

enum class Input { kBorrowed, kCopied };  // kCopied: the caller may overwrite the input while it is being sent

at::Tensor sendable(const at::Tensor& tensor, Input input) {
  const at::Tensor values = tensor.detach();
  return input == Input::kCopied ? values.clone(at::MemoryFormat::Contiguous) : values.contiguous();
}

void check_root(const Communicator& communicator, std::int64_t root) {
  D9D_CHECK(root >= 0 && root < communicator.size(), ConfigError, "[core::gather] expected a root in [0, ",
            communicator.size(), "), a rank of group '", communicator.group().name, "', got ", root, ".");
}

PendingTensors start_all_gather(const at::Tensor& tensor, Communicator& communicator, Input input) {
  const at::NoGradGuard no_grad;
  const at::Tensor sent = sendable(tensor, input);
  std::vector<std::int64_t> shape = sent.sizes().vec();
  shape.insert(shape.begin(), communicator.size());
  const at::Tensor gathered = at::empty(shape, sent.options());
  return {gathered.unbind(), sent, communicator.all_gather(gathered.view({-1}), sent.view({-1}))};
}

PendingTensors start_gather(const at::Tensor& tensor, Communicator& communicator, std::int64_t root, Input input) {
  check_root(communicator, root);
  const at::NoGradGuard no_grad;
  const at::Tensor sent = sendable(tensor, input);
  std::vector<at::Tensor> outputs;
  for (std::int64_t i = 0; communicator.rank() == root && i < communicator.size(); ++i) {
    outputs.push_back(at::empty_like(sent));
  }
  Work work = communicator.gather(outputs, sent, root);
  return {std::move(outputs), sent, std::move(work)};
}

constexpr std::int64_t kMaxDims = 16;

// Collective. Exchanges the shape of each rank's tensor with one all_gather.
std::vector<std::vector<std::int64_t>> shapes_of_all(const at::Tensor& tensor, Communicator& communicator) {
  D9D_CHECK(tensor.dim() <= kMaxDims, ConfigError, "[core::gather] expected a tensor of at most ", kMaxDims,
            " dims, got ", tensor.dim(), ". Reshape it.");
  std::vector<std::int64_t> header(2 + kMaxDims);
  header[0] = static_cast<std::int64_t>(tensor.scalar_type());
  header[1] = tensor.dim();
  std::ranges::copy(tensor.sizes(), header.begin() + 2);
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::int64_t> dtypes;
  for (const at::Tensor& one : all_gather(at::tensor(header, at::kLong).to(communicator.device()), communicator)) {
    const at::Tensor host = to_host(one, communicator);
    const auto* const values = host.const_data_ptr<std::int64_t>();
    dtypes.push_back(values[0]);
    shapes.emplace_back(values + 2, values + 2 + values[1]);
  }
  for (std::size_t i = 0; i < dtypes.size(); ++i) {
    D9D_CHECK(dtypes[i] == dtypes[0], ConfigError, "[core::gather] expected one dtype on all ranks of group '",
              communicator.group().name, "', got ", static_cast<at::ScalarType>(dtypes[0]), " on rank ",
              communicator.group().ranks[0], " and ", static_cast<at::ScalarType>(dtypes[i]), " on rank ",
              communicator.group().ranks[i], ".");
  }
  return shapes;
}

std::int64_t numel_of(const std::vector<std::int64_t>& shape) {
  return c10::multiply_integers(shape.begin(), shape.end());
}

PendingTensors start_all_gather_variadic(const at::Tensor& tensor, Communicator& communicator) {
  const at::NoGradGuard no_grad;
  const std::vector<std::vector<std::int64_t>> shapes = shapes_of_all(tensor, communicator);
  std::int64_t largest = 0;
  for (const auto& shape : shapes) largest = std::max(largest, numel_of(shape));
  const at::Tensor gathered = at::zeros({communicator.size(), largest}, tensor.options());
  const at::Tensor sent = gathered[communicator.rank()];
  sent.narrow(0, 0, tensor.numel()).view(tensor.sizes()).copy_(tensor.detach());
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    parts.push_back(gathered[static_cast<std::int64_t>(i)].narrow(0, 0, numel_of(shapes[i])).view(shapes[i]));
  }
  Work work = largest == 0 ? Work() : communicator.all_gather(gathered.view({-1}), sent);
  return {std::move(parts), sent, std::move(work)};
}

PendingTensors start_gather_variadic(const at::Tensor& tensor, Communicator& communicator, std::int64_t root,
                                     Input input) {
  check_root(communicator, root);
  const at::NoGradGuard no_grad;
  const std::vector<std::vector<std::int64_t>> shapes = shapes_of_all(tensor, communicator);
  const bool is_root = communicator.rank() == root;
  const at::Tensor sent = sendable(tensor, is_root ? Input::kCopied : input);
  std::vector<at::Tensor> parts;
  std::vector<PointToPoint> messages;
  for (std::int64_t i = 0; is_root && i < communicator.size(); ++i) {
    const auto& shape = shapes[static_cast<std::size_t>(i)];
    parts.push_back(i == root ? sent : at::empty(shape, sent.options()));
    if (i == root || numel_of(shape) == 0) continue;
    messages.push_back({.direction = PointToPoint::Direction::kReceive, .tensor = parts.back(), .peer = i});
  }
  if (!is_root && sent.numel() > 0) {
    messages.push_back({.direction = PointToPoint::Direction::kSend, .tensor = sent, .peer = root});
  }
  Work work = messages.empty() ? Work() : communicator.exchange(messages);
  return {std::move(parts), sent, std::move(work)};
}

at::Tensor bytes_of(const nlohmann::json& object, const Communicator& communicator) {
  std::vector<std::uint8_t> cbor = nlohmann::json::to_cbor(object);
  return at::from_blob(cbor.data(), {std::ssize(cbor)}, at::kByte).clone().to(communicator.device());
}

std::vector<nlohmann::json> objects_of(const std::vector<at::Tensor>& tensors, Communicator& communicator) {
  std::vector<nlohmann::json> objects;
  for (const at::Tensor& one : tensors) {
    const at::Tensor host = to_host(one, communicator);
    const auto* const bytes = host.const_data_ptr<std::uint8_t>();
    objects.push_back(nlohmann::json::from_cbor(bytes, bytes + host.numel()));
  }
  return objects;
}

}  // namespace

std::vector<at::Tensor> all_gather(const at::Tensor& tensor, Communicator& communicator) {
  return start_all_gather(tensor, communicator, Input::kBorrowed).wait();
}

PendingTensors all_gather_async(const at::Tensor& tensor, Communicator& communicator) {
  return start_all_gather(tensor, communicator, Input::kCopied);
}

std::vector<at::Tensor> gather(const at::Tensor& tensor, Communicator& communicator, std::int64_t root) {
  return start_gather(tensor, communicator, root, Input::kBorrowed).wait();
}

PendingTensors gather_async(const at::Tensor& tensor, Communicator& communicator, std::int64_t root) {
  return start_gather(tensor, communicator, root, Input::kCopied);
}

std::vector<at::Tensor> all_gather_variadic_shape(const at::Tensor& tensor, Communicator& communicator) {
  return start_all_gather_variadic(tensor, communicator).wait();
}

PendingTensors all_gather_variadic_shape_async(const at::Tensor& tensor, Communicator& communicator) {
  return start_all_gather_variadic(tensor, communicator);
}

std::vector<at::Tensor> gather_variadic_shape(const at::Tensor& tensor, Communicator& communicator, std::int64_t root) {
  return start_gather_variadic(tensor, communicator, root, Input::kBorrowed).wait();
}

PendingTensors gather_variadic_shape_async(const at::Tensor& tensor, Communicator& communicator, std::int64_t root) {
  return start_gather_variadic(tensor, communicator, root, Input::kCopied);
}

std::vector<nlohmann::json> all_gather_object(const nlohmann::json& object, Communicator& communicator) {
  return objects_of(all_gather_variadic_shape(bytes_of(object, communicator), communicator), communicator);
}

std::vector<nlohmann::json> all_gather_object(const nlohmann::json& object, const DeviceMesh& mesh) {
  if (mesh.num_ranks() == 1) return std::vector<nlohmann::json>(1, object);
  return all_gather_object(object, *mesh.communicator());
}

std::vector<nlohmann::json> gather_object(const nlohmann::json& object, Communicator& communicator, std::int64_t root) {
  return objects_of(gather_variadic_shape(bytes_of(object, communicator), communicator, root), communicator);
}

}  // namespace d9d
