// The command line of d9d_generate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/config/record_json.h"
#include "d9d/base/dtype.h"
#include "d9d/base/record.h"
#include "d9d/core/launch/launch.h"

namespace d9d::generate_tool {

struct Options {
  std::filesystem::path model = {};                   // a folder of Hugging Face
  std::vector<std::string> prompt = {};               // texts
  std::optional<std::filesystem::path> prompts = {};  // a file of rows
  bool chat = false;                                  // texts are what a user says
  std::int64_t num_tokens = 100;
  double temperature = 0.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
  std::int64_t seed = 0;
  std::vector<std::string> stop = {};  // tokens, by their text
  std::int64_t batch = 16;             // prompts at a time
  std::optional<Dtype> dtype = {};     // none: float32 on a CPU, bfloat16 on a GPU
  DeviceChoice device = DeviceChoice::kAuto;
  std::optional<std::string> chat_template = {};
  std::optional<std::string> chat_template_kwargs = {};  // a JSON object
  std::optional<std::string> python = {};
  bool json = false;  // rows instead of text

  static constexpr auto fields() {
    return record<Options>(required("model", &Options::model), defaulted("prompt", &Options::prompt),
                           defaulted("prompts", &Options::prompts), defaulted("chat", &Options::chat),
                           defaulted("num_tokens", &Options::num_tokens, at_least(1)),
                           defaulted("temperature", &Options::temperature, at_least(0)),
                           defaulted("top_k", &Options::top_k, at_least(0)),
                           defaulted("top_p", &Options::top_p, greater_than(0)), defaulted("seed", &Options::seed),
                           defaulted("stop", &Options::stop), defaulted("batch", &Options::batch, at_least(1)),
                           defaulted("dtype", &Options::dtype), defaulted("device", &Options::device),
                           defaulted("chat_template", &Options::chat_template),
                           defaulted("chat_template_kwargs", &Options::chat_template_kwargs),
                           defaulted("python", &Options::python), defaulted("json", &Options::json));
  }
};

// Throws UsageError, HelpRequested for --help, and ConfigError for a value that a flag cannot have.
[[nodiscard]] Options parse_options(int argc, const char* const* argv);

}  // namespace d9d::generate_tool
