// The error text of nlohmann's parser for a text that is not JSON, without its prefix.
//
// Example
//   catch (const nlohmann::json::exception& error) { fault = json_fault(error); }   // "unexpected '}'; expected ..."
#pragma once

#include <exception>
#include <string>

namespace d9d {

[[nodiscard]] std::string json_fault(const std::exception& error);

}  // namespace d9d
