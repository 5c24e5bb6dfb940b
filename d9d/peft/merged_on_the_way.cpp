#include "d9d/peft/merged_on_the_way.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/magnitude.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace d9d {
namespace {

using Tensors = std::vector<at::Tensor>;

// to: what the sums will be rounded to, by another mapper; none: they are rounded here, to the dtype of the weight.
StateMapper merged(const AdaptedModule& module, const std::optional<at::ScalarType>& to) {
  std::vector<std::string> sums;
  for (const AdaptedWeight& weight : module.weights) sums.push_back(weight.merged);
  const auto add_terms = [name = module.name, product = module.product, scale = module.scale, num_weights = sums.size(),
                          num_a = module.a.size(), num_b = module.b.size(), to](const Tensors& inputs) -> Tensors {
    const auto dtype = inputs[0].scalar_type(), wide = at::promote_types(dtype, at::kFloat);
    const auto device = inputs[0].is_meta() ? at::kMeta : at::kCPU;  // so that GPUs change no bit
    Tensors all;
    for (const at::Tensor& input : inputs) all.push_back(input.to(at::TensorOptions(device).dtype(wide)));
    const auto first_a = all.begin() + static_cast<std::ptrdiff_t>(num_weights),
               first_b = first_a + static_cast<std::ptrdiff_t>(num_a),
               magnitude = first_b + static_cast<std::ptrdiff_t>(num_b);
    const Tensors a(first_a, first_b), b(first_b, magnitude);
    Tensors made;
    for (std::size_t i = 0; i < num_weights; ++i) {
      at::Tensor sum = all[i] + low_rank_term(product, factor_of(a, i), factor_of(b, i), scale);
      if (magnitude != all.end()) sum = sum * (*magnitude / norms_of_squares(sum.square().sum(1))).unsqueeze(1);
      if (!sum.is_meta()) check_merged_fits(name, sum, to.value_or(dtype));
      made.push_back(to ? sum : sum.to(dtype));
    }
    return made;
  };
  std::vector<std::string> inputs = sums;
  inputs.insert(inputs.end(), module.a.begin(), module.a.end());
  inputs.insert(inputs.end(), module.b.begin(), module.b.end());
  if (module.has_magnitude()) inputs.push_back(module.magnitude);
  return mapper::function("merge", inputs, sums, add_terms);
}

}  // namespace

void check_merged_fits(const std::string& name, const at::Tensor& sum, at::ScalarType dtype) {
  D9D_CHECK(at::equal(sum.to(dtype).isfinite(), sum.isfinite()), ConfigError, "[peft] expected the merged weights of '",
            name, "' to fit into ", dtype, ", got larger ones. Merge in bfloat16 or float32.");
}

StateMapper merged_on_the_way(const AdaptedModel& adapted, const StateMapper& exported,
                              const std::optional<at::ScalarType>& dtype) {
  const std::set<std::string> wanted = exported.inputs();
  std::vector<StateMapper> copies, merges;
  for (const auto& [stored, others] : adapted.untied) {
    std::vector<std::string> names = others;
    names.push_back(stored);
    copies.push_back(mapper::copy(stored, names));
  }
  for (const AdaptedModule& module : adapted.modules) {
    merges.push_back(merged(module, dtype));
    for (const AdaptedWeight& weight : module.weights) {
      D9D_CHECK(wanted.contains(weight.merged), ConfigError, "[peft] expected an export with '", weight.merged,
                "', into which the adapter of '", module.name,
                "' is merged, got one that leaves it out. Export it, or narrow module_name_pattern.");
    }
  }
  const StateMapper all =
      mapper::sequential({mapper::parallel(std::move(copies)), mapper::parallel(std::move(merges)), exported});
  return dtype ? mapper::in_dtype(all, *dtype) : all;
}

}  // namespace d9d
