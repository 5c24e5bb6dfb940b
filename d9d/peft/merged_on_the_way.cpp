#include "d9d/peft/merged_on_the_way.h"

#include <ATen/ATen.h>

#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace d9d {
namespace {

// is_wide: the sum stays in the dtype that it is computed in.
StateMapper merged(const AdaptedLinear& linear, bool is_wide) {
  const auto add_term = [scale = linear.scale, is_grouped = linear.is_grouped(),
                         is_wide](const std::vector<at::Tensor>& inputs) -> std::vector<at::Tensor> {
    const auto dtype = inputs[0].scalar_type(), wide = at::promote_types(dtype, at::kFloat);
    const auto device = inputs[0].is_meta() ? at::kMeta : at::kCPU;  // so that GPUs change no bit
    const auto in = [&](const at::Tensor& input) { return input.to(at::TensorOptions(device).dtype(wide)); };
    const at::Tensor a = in(inputs[1]), b = in(inputs[2]);
    const at::Tensor sum = in(inputs[0]) + (is_grouped ? a.matmul(b) : b.matmul(a)) * scale;
    return {is_wide ? sum : sum.to(dtype)};
  };
  return mapper::function("merge", {linear.weight(), linear.a(), linear.b()}, {linear.weight()}, add_term);
}

}  // namespace

StateMapper merged_on_the_way(const std::vector<AdaptedLinear>& linears, const StateMapper& exported,
                              const std::optional<at::ScalarType>& dtype) {
  std::vector<StateMapper> merges;
  for (const AdaptedLinear& linear : linears) merges.push_back(merged(linear, dtype.has_value()));
  const StateMapper all = mapper::sequential({mapper::parallel(std::move(merges)), exported});
  return dtype ? mapper::in_dtype(all, *dtype) : all;
}

}  // namespace d9d
