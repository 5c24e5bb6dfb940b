// The torch wheel contains Gloo but not its headers. c10d's header needs a few of their declarations; those are in
// cmake/gloo_headers, which only this file includes. Objects of these types are created and used inside LibTorch only.
#include "d9d/core/communicator/process_group/gloo_group.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "d9d/core/communicator/process_group/start_lock.h"

namespace d9d {
namespace {

// A receive that times out makes Gloo close all connections of the group, which is the only way to end pending
// operations.
void close_connections(c10d::Backend& group) {
  constexpr int kUnusedTag = 0x7fffffff;
  if (group.getSize() == 1) return;
  std::vector<at::Tensor> nothing = {at::empty({1}, at::kByte)};
  try {
    auto lock = lock_starts();
    const auto work = group.recv(nothing, (group.getRank() + 1) % group.getSize(), kUnusedTag);
    lock.unlock();
    work->wait(std::chrono::milliseconds(1));
  } catch (const std::exception&) {  // the timeout is intended
  }
}

}  // namespace

MakeProcessGroup gloo_groups(const std::string& address) {
  return [address](const c10::intrusive_ptr<c10d::Store>& store, const ProcessGroupOptions& options) {
    const auto gloo = c10d::ProcessGroupGloo::Options::create(options.timeout);
    gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(address)};
    gloo->group_name = options.name;
    c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
        store, static_cast<int>(options.index), static_cast<int>(options.ranks.size()), gloo);
    return ProcessGroup{.backend = backend, .interrupt = [backend] { close_connections(*backend); }};
  };
}

}  // namespace d9d
