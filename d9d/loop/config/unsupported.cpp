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

template <class T, class... Alternatives>
constexpr bool is_one_of() {
  return (std::is_same_v<T, Alternatives> || ...);
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

void refuse_unsupported(const OptimizerConfig& optimizer) {
  std::visit(
      []<class T>(const T&) {
        if constexpr (!is_one_of<T, AdamWConfig, StochasticAdamWConfig>()) {
          refuse("optimizer.name", T::kTag.value, "this optimiser is", "Use 'adamw' or 'stochastic_adamw'.");
        }
      },
      optimizer);
}

}  // namespace d9d
