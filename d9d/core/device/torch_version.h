// Which LibTorch runs. Its libraries carry no version in their names: a program finds whatever wheel is installed.
#pragma once

#include <string>

namespace d9d {

// "2.11.0". Asks LibTorch about CUDA: on a machine with a device, call load_cuda() before.
[[nodiscard]] std::string running_torch_version();

// Throws StateError unless it is the version that this library was built against. As above.
void check_torch_version();

}  // namespace d9d
