#include "d9d/lr_scheduler/lambda_scheduler.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d {

LambdaScheduler::LambdaScheduler(std::function<double(std::int64_t)> factor) : factor_(std::move(factor)) {}

nlohmann::ordered_json LambdaScheduler::state() const { return {{"num_steps", num_steps_}}; }

void LambdaScheduler::load_state(const nlohmann::ordered_json& state) {
  const bool has_position = state.is_object() && state.contains("num_steps") && state["num_steps"].is_number_integer();
  D9D_CHECK(has_position && state["num_steps"] >= 0, StateError,
            "[lr_scheduler::load_state] expected {\"num_steps\": n} with n >= 0, got ", state.dump(),
            ". Load the checkpoint that this scheduler wrote.");
  num_steps_ = state["num_steps"].get<std::int64_t>();
}

}  // namespace d9d
