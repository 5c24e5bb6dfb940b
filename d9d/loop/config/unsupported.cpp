#include "d9d/loop/config/unsupported.h"

#include <string_view>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"

namespace d9d {
namespace {

[[noreturn]] void refuse(std::string_view key, const Json& value, std::string_view feature, std::string_view remedy) {
  throw ConfigError(
      cat("[config] ", key, " = ", json_excerpt(value), ": ", feature, " not built in this version. ", remedy));
}

void refuse_schedule(const PipelineScheduleConfig& schedule) {
  if (!std::holds_alternative<InferenceScheduleConfig>(schedule)) return;
  refuse("trainer.pipelining.schedule", write_record(schedule), "training without a backward pass is", "Use gpipe.");
}

}  // namespace

void refuse_unsupported(const TrainerConfig& trainer) {
  refuse_schedule(trainer.pipelining.schedule);
  const auto& dtype = trainer.gradient_manager.grad_dtype;
  if (dtype && *dtype != Dtype::kFloat32 && *dtype != Dtype::kBFloat16) {
    refuse("trainer.gradient_manager.grad_dtype", enum_name(*dtype), "accumulating gradients in this dtype is",
           "Set it to \"float32\", \"bfloat16\" or null.");
  }
}

}  // namespace d9d
