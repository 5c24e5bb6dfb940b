// The program of a helper process: helper.py with the SDK of one tracker.
//
// Example
//   const d9d::HelperProgram program{.provider = "aim", .python = "/usr/bin/python3", .config = config};
//   const auto process = program.start();
//   const auto opened = program.open(*process, {{"name", "pretrain"}, {"resume_state", nullptr}, ...});
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/process/line_process.h"

namespace d9d {

struct HelperProgram {
  std::string provider;
  std::string python;             // interpreter
  nlohmann::ordered_json config;  // the tracker's record
  std::chrono::milliseconds for_opening = std::chrono::minutes(5);

  // Starts the process, which then imports the SDK. Throws ConfigError if the interpreter or the SDK is missing.
  [[nodiscard]] std::unique_ptr<LineProcess> start() const;
  // Opens the run that `request` describes (helper.py), and waits until the SDK has. Returns its state, the path of
  // its spool and what the user should know or null ("warning"). Throws IoError with the SDK's reason.
  [[nodiscard]] nlohmann::ordered_json open(LineProcess& process, const nlohmann::ordered_json& request) const;
};

}  // namespace d9d
