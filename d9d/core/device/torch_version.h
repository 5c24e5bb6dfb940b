// Which LibTorch runs. Its libraries carry no version in their names: a program finds whatever wheel is installed.
#pragma once

#include <string>

namespace d9d {

// "2.11.0"
[[nodiscard]] std::string running_torch_version();

// Throws StateError unless it is the version that this library was built against.
void check_torch_version();

}  // namespace d9d
