// The source of helper.py, which the library carries: an installed program needs no file beside it.
//
// Example
//   process.send(nlohmann::json(d9d::helper_script()).dump());  // python_command() runs it
#pragma once

#include <string_view>

namespace d9d {

[[nodiscard]] std::string_view helper_script();  // defined in a file that CMake writes (cmake/PythonScripts.cmake)

}  // namespace d9d
