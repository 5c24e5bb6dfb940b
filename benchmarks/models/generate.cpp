// Seconds of generating tokens after random prompts.
//
//   models_benchmark FOLDER cpu|cuda float32|bfloat16 NUM_PROMPTS PROMPT_TOKENS NUM_TOKENS
//
// Reads lines; for each it generates once and prints the seconds. benchmarks/models/generate.py runs it beside
// transformers.
#include "d9d/models/decoder/generate.h"

#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/core/launch/launch.h"
#include "d9d/models/load_decoder.h"

namespace {

void run(const std::vector<std::string>& arguments, c10::Device device) {
  const auto dtype = arguments.at(2) == "bfloat16" ? at::kBFloat16 : at::kFloat;
  const auto model = d9d::load_decoder(arguments.at(0), dtype, device);
  const std::int64_t num_prompts = std::stoll(arguments.at(3)), length = std::stoll(arguments.at(4));
  std::vector<std::vector<std::int64_t>> prompts(static_cast<std::size_t>(num_prompts));
  for (std::int64_t i = 0; i < num_prompts; ++i) {
    for (std::int64_t t = 0; t < length; ++t) prompts[static_cast<std::size_t>(i)].push_back((i * 131 + t * 17) % 250);
  }
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    const auto results = d9d::generate_batch(model, prompts, {.num_tokens = std::stoll(arguments.at(5))});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::cout << seconds.count();
    for (const auto& result : results) std::cout << " " << result.ids.back();
    std::cout << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto device = arguments.at(1) == "cuda" ? d9d::DeviceChoice::kCuda : d9d::DeviceChoice::kCpu;
  return d9d::launch({.device = device, .log_level = d9d::LogLevel::kWarning}, {},
                     [&](d9d::DistContext& context) { run(arguments, context.device()); });
}
