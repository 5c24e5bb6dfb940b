// What a program that is spoken to in JSON lines answers.
//
// Example
//   process.send(R"({"template": "..."})");
//   std::string failure;
//   const nlohmann::ordered_json answer = d9d::answer_with("ready", process, std::chrono::seconds(60), failure);
#pragma once

#include <chrono>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/process/line_process.h"

namespace d9d {

// Waits for the answer that has `key`; others are left out. Null, with the reason in `failure`, if the program says
// "error" or "failed", ends, or says nothing within `timeout`. Local.
[[nodiscard]] nlohmann::ordered_json answer_with(const char* key, LineProcess& process,
                                                 std::chrono::milliseconds timeout, std::string& failure);

}  // namespace d9d
