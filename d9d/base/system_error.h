#pragma once

#include <string>
#include <system_error>

namespace d9d {

// The system's text for an errno.
[[nodiscard]] inline std::string system_error_text(int error) { return std::generic_category().message(error); }

}  // namespace d9d
