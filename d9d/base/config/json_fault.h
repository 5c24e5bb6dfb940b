// What nlohmann's parser says of a text that is no JSON, without its own prefix.
//
// Example
//   catch (const nlohmann::json::exception& error) { fault = json_fault(error); }   // "unexpected '}'; expected ..."
#pragma once

#include <exception>
#include <string>

namespace d9d {

[[nodiscard]] std::string json_fault(const std::exception& error);

}  // namespace d9d
