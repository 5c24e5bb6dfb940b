#include "d9d/peft/merged_on_the_way.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace d9d {
namespace {

// to: what the sum will be rounded to, by another mapper; none: it is rounded here, to the dtype of the weight.
StateMapper merged(const AdaptedLinear& linear, const std::optional<at::ScalarType>& to) {
  const auto add_term = [name = linear.name, scale = linear.scale, is_grouped = linear.is_grouped(),
                         to](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    const auto dtype = inputs[0].scalar_type(), wide = at::promote_types(dtype, at::kFloat);
    const auto device = inputs[0].is_meta() ? at::kMeta : at::kCPU;  // so that GPUs change no bit
    const auto in = [&](const at::Tensor& input) { return input.to(at::TensorOptions(device).dtype(wide)); };
    const at::Tensor a = in(inputs[1]), b = in(inputs[2]);
    const at::Tensor sum = in(inputs[0]) + (is_grouped ? a.matmul(b) : b.matmul(a)) * scale;
    if (!sum.is_meta()) check_merged_fits(name, sum, to.value_or(dtype));
    return {to ? sum : sum.to(dtype)};
  };
  return mapper::function("merge", {linear.weight(), linear.a(), linear.b()}, {linear.weight()}, add_term);
}

}  // namespace

void check_merged_fits(const std::string& name, const at::Tensor& sum, at::ScalarType dtype) {
  D9D_CHECK(at::equal(sum.to(dtype).isfinite(), sum.isfinite()), ConfigError, "[peft] expected the merged weights of '",
            name, "' to fit into ", dtype, ", got larger ones. Merge in bfloat16 or float32.");
}

StateMapper merged_on_the_way(const std::vector<AdaptedLinear>& linears, const StateMapper& exported,
                              const std::optional<at::ScalarType>& dtype) {
  std::vector<StateMapper> merges;
  for (const AdaptedLinear& linear : linears) merges.push_back(merged(linear, dtype));
  const StateMapper all = mapper::sequential({mapper::parallel(std::move(merges)), exported});
  return dtype ? mapper::in_dtype(all, *dtype) : all;
}

}  // namespace d9d
