// The source of render.py, which the library carries: an installed program needs no file beside it.
//
// Example
//   process.send(nlohmann::json(d9d::render_script()).dump());  // python_command() runs it
#pragma once

#include <string_view>

namespace d9d {

[[nodiscard]] std::string_view render_script();  // defined in a file that CMake writes (cmake/PythonScripts.cmake)

}  // namespace d9d
