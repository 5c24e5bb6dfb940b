#include "d9d/peft/peft_import.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/peft/peft_export.h"
#include "d9d/peft/published_names.h"

namespace d9d {
namespace {

using Names = std::vector<std::string>;
using Tensors = std::vector<at::Tensor>;

constexpr double kScaleTolerance = 1e-12;  // of a product and a division in float64

// Experts whose adapters peft has joined, as it does for the joined parameters of transformers 5. A [E * rank, in] with
// row e * rank + k, and B [out, rank * E] with column k * E + e.
at::Tensor experts_of_a(const at::Tensor& a, std::int64_t num_experts) {
  return a.unflatten(0, {num_experts, -1}).transpose(1, 2);  // [E, in, rank]
}
at::Tensor experts_of_b(const at::Tensor& b, std::int64_t num_experts) {
  return b.unflatten(1, {-1, num_experts}).permute({2, 1, 0});  // [E, rank, out]
}

void check_joined(const Tensors& joined, std::int64_t num_experts) {
  const at::IntArrayRef a = joined[0].sizes(), b = joined[1].sizes();
  D9D_CHECK(a.size() == 2 && b.size() == 2 && a[0] > 0 && a[0] == b[1] && a[0] % num_experts == 0, ConfigError,
            "[peft] expected joined adapters A [", num_experts,
            " experts * rank, in] and B [out, rank * experts], got ", a, " and ", b,
            ". Check that adapters and model belong together.");
}

// A and B of one matrix, and of gate and up.
Tensors split_one(const Tensors& joined, std::int64_t num_experts) {
  check_joined(joined, num_experts);
  return {experts_of_a(joined[0], num_experts), experts_of_b(joined[1], num_experts)};
}
Tensors split_gate_and_up(const Tensors& joined, std::int64_t num_experts, std::int64_t rank) {
  check_joined(joined, num_experts);
  const at::Tensor a = experts_of_a(joined[0], num_experts), b = experts_of_b(joined[1], num_experts);
  D9D_CHECK(b.size(2) > 0 && b.size(2) % 2 == 0, ConfigError,
            "[peft] expected joined adapters of the experts' gate and up with a B [2 * out, rank * experts], got ",
            joined[1].sizes(), ". Check that adapters and model belong together.");
  const Tensors of = b.chunk(2, 2);  // what gate adds, and what up adds
  if (a.size(2) == rank) return {a, of[0], a, of[1]};
  const Tensors features = a.chunk(2, 2), gate = of[0].chunk(2, 1), up = of[1].chunk(2, 1);
  const bool are_apart = b.is_meta() || (gate[1].count_nonzero().item<std::int64_t>() == 0 &&
                                         up[0].count_nonzero().item<std::int64_t>() == 0);
  D9D_CHECK(a.size(2) == 2 * rank && are_apart, ConfigError,
            "[peft] expected joined adapters of the experts' gate and up of rank ", rank, ", or of rank ", 2 * rank,
            " where each has half of it, got rank ", a.size(2), are_apart ? "" : ", all of which both use",
            ". Give them that rank and the scale that it has there.");
  return {features[0], gate[0], features[1], up[1]};
}

std::int64_t num_experts_of(const AdaptedModule& experts) { return experts.weights[0].shape[0]; }

class Reader {
 public:
  Reader(const StateMapper& exported, const PeftFolder& folder)
      : names_(exported), folder_(folder), present_(folder.tensors().names.begin(), folder.tensors().names.end()) {}

  StateMapper operator()(const AdaptedModel& model) {
    for (const AdaptedModule& module : model.modules) add(module);
    for (const auto& [place, joined] : joined_) add_joined(place, joined);
    for (const TunedParameter& parameter : model.tuned) add_tuned(parameter);
    check_all();
    return mapper::parallel(mappers_);
  }

 private:
  struct Joined {
    std::map<std::string, AdaptedModule> linears;  // by gate_proj, up_proj, down_proj
  };

  void add(const AdaptedModule& adapted) {
    const Names modules = names_.modules_of(adapted);
    if (adapted.is_experts() && !present_.contains(peft_name(modules[0], "lora_A"))) {
      const std::size_t leaf = modules[0].rfind('.'), expert = modules[0].rfind('.', leaf - 1);
      joined_[modules[0].substr(0, expert)].linears.emplace(modules[0].substr(leaf + 1), adapted);
      return;
    }
    for (const std::string& module : modules) check_params(adapted, adapted.rank, module);
    for (const auto& [factors, part] : {std::pair{adapted.a, "lora_A"}, std::pair{adapted.b, "lora_B"}}) {
      Names sources;
      for (const std::string& module : modules) sources.push_back(peft_name(module, part, adapted.product));
      take(sources);
      if (adapted.is_experts()) {
        mappers_.push_back(
            mapper::sequential({mapper::stack(sources, factors[0], 0), mapper::transpose(factors[0], 1, 2)}));
      } else if (adapted.product == LowRankProduct::kTable && factors == adapted.a) {
        mappers_.push_back(
            mapper::sequential({mapper::transpose(sources[0], 0, 1), split_rows(sources[0], factors, adapted)}));
      } else {
        mappers_.push_back(split_rows(sources[0], factors, adapted));
      }
    }
    if (adapted.has_magnitude()) {
      take({peft_magnitude_name(modules[0])});
      mappers_.push_back(mapper::rename(peft_magnitude_name(modules[0]), adapted.magnitude));
    }
  }

  // A factor for all weights as one for each, if the adapter has it so.
  static StateMapper split_rows(const std::string& source, const Names& factors, const AdaptedModule& adapted) {
    if (factors.size() == 1) return mapper::rename(source, factors[0]);
    std::vector<std::pair<std::string, std::int64_t>> rows;
    for (std::size_t i = 0; i < factors.size(); ++i) rows.emplace_back(factors[i], adapted.weights[i].shape[0]);
    return mapper::split(source, rows, 0);
  }

  // experts: the name of the module that has gate_up_proj and down_proj as parameters.
  void add_joined(const std::string& experts, const Joined& joined) {
    const std::string inner = experts + ".base_layer";  // of the first of two parameters with adapters
    const bool has_both = present_.contains(peft_name(inner, "lora_A"));
    const auto& linears = joined.linears;
    const auto find = [&](const char* leaf) { return linears.contains(leaf) ? &linears.at(leaf) : nullptr; };
    const AdaptedModule *const gate = find("gate_proj"), *const up = find("up_proj"), *const down = find("down_proj");
    const bool has_gate_up = has_both || folder_.targets_parameter("gate_up_proj");
    if (has_gate_up && gate != nullptr && up != nullptr) {
      const Names sources = parts_of(has_both ? inner : experts);
      const std::int64_t num_experts = num_experts_of(*gate), rank = gate->rank;
      check_params(*gate, std::nullopt, experts + ".gate_up_proj");
      check_params(*up, std::nullopt, experts + ".gate_up_proj");
      mappers_.push_back(
          mapper::function("split", sources, {gate->a[0], gate->b[0], up->a[0], up->b[0]},
                           [=](const Tensors& tensors) { return split_gate_and_up(tensors, num_experts, rank); }));
    } else if (gate != nullptr || up != nullptr) {
      missing_.insert(peft_name(experts + ".0." + (gate != nullptr ? "gate_proj" : "up_proj"), "lora_A"));
    }
    if (down != nullptr && (has_both || !has_gate_up)) {
      check_params(*down, down->rank, experts + ".down_proj");
      mappers_.push_back(mapper::function(
          "split", parts_of(experts), {down->a[0], down->b[0]},
          [num_experts = num_experts_of(*down)](const Tensors& tensors) { return split_one(tensors, num_experts); }));
    } else if (down != nullptr) {
      missing_.insert(peft_name(experts + ".0.down_proj", "lora_A"));
    }
  }

  void add_tuned(const TunedParameter& parameter) {
    if (!can_be_saved_whole(parameter)) return;
    const std::string source = "base_model.model." + names_.name_of(parameter.name, parameter.shape);
    if (!present_.contains(source)) return;  // as the base has it
    take({source});
    mappers_.push_back(mapper::rename(source, parameter.name));
  }

  Names parts_of(const std::string& module) {
    Names sources = {peft_name(module, "lora_A"), peft_name(module, "lora_B")};
    take(sources);
    return sources;
  }

  void take(const Names& sources) {
    for (const std::string& source : sources) (present_.contains(source) ? used_ : missing_).insert(source);
  }

  // rank: none where adapters of several linears are joined.
  void check_params(const AdaptedModule& adapted, std::optional<std::int64_t> rank, const std::string& module) const {
    D9D_CHECK(adapted.has_magnitude() == folder_.has_magnitudes(), ConfigError, "[peft] expected the adapter of '",
              adapted.name, "' by ", adapted.has_magnitude() ? "dora" : "lora",
              " as model_provider.adapters says, got use_dora = ", folder_.has_magnitudes() ? "true" : "false", " in '",
              folder_.path(), "'. Write the kind that it is there.");
    const LoraParams params = folder_.params_of(module);
    const bool is_same_scale = std::abs(params.scale() - adapted.scale) <= kScaleTolerance * adapted.scale;
    D9D_CHECK((!rank || params.r == *rank) && is_same_scale, ConfigError, "[peft] expected the adapter of '",
              adapted.name, "' to have rank ", adapted.rank, " and scale ", adapted.scale,
              " as model_provider.adapters says, got rank ", params.r, " and scale ", params.scale(), " in '",
              folder_.path(), "', where alpha is ", params.alpha, ". Write r, alpha and use_rslora as they are there.");
  }

  void check_all() const {
    D9D_CHECK(missing_.empty(), ConfigError, "[peft] expected '", folder_.path(),
              "' to have an adapter for each module that model_provider.adapters matches, got ", missing_.size(),
              " tensors missing, the first '", *missing_.begin(), "'. Narrow module_name_pattern.");
    const auto unused = std::ranges::find_if(present_, [&](const std::string& name) { return !used_.contains(name); });
    D9D_CHECK(unused == present_.end(), ConfigError,
              "[peft] expected model_provider.adapters to match what has adapters in '", folder_.path(), "', got '",
              *unused, "' there, and none or no trained weight of it here. Widen module_name_pattern.");
  }

  const PublishedNames names_;
  const PeftFolder& folder_;
  const std::set<std::string> present_;
  std::set<std::string> used_, missing_;
  std::map<std::string, Joined> joined_;  // by the name of the module of experts
  std::vector<StateMapper> mappers_;
};

}  // namespace

StateMapper from_peft(const AdaptedModel& model, const StateMapper& exported, const PeftFolder& folder) {
  return Reader(exported, folder)(model);
}

}  // namespace d9d
