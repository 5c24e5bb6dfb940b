// Gloo: collectives of CPU tensors over TCP.
#pragma once

#include <string>

#include "d9d/core/communicator/process_group/process_group.h"

namespace d9d {

// `address`: the address of this machine under which the other ranks reach it.
[[nodiscard]] MakeProcessGroup gloo_groups(const std::string& address);

}  // namespace d9d
