// Which layers of a decoder follow which plan for their activations, as a configuration states it.
//
//   "checkpointing": false                                                        every layer keeps everything
//   "checkpointing": true                                                         every layer is computed again
//   "checkpointing": {"recompute": "all_but_attention", "offload": true, "layers": 20}
#pragma once

#include <optional>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"
#include "d9d/modules/activation_plan.h"

namespace d9d {

struct LayerCheckpointing {
  LayerCheckpointing() = default;
  LayerCheckpointing(bool of_all_layers)  // NOLINT: the short form
      : plan{.recompute = of_all_layers ? Recompute::kAll : Recompute::kNothing} {}
  LayerCheckpointing(const ActivationPlan& plan_, std::optional<std::int64_t> num_layers_ = {})
      : plan(plan_), num_layers(num_layers_) {}

  ActivationPlan plan;
  std::optional<std::int64_t> num_layers;  // the first ones of the whole model; none: all. The others keep everything

  [[nodiscard]] ActivationPlan of_layer(std::int64_t index) const {
    return !num_layers || index < *num_layers ? plan : ActivationPlan();
  }
  // Whether it is one of the two short forms.
  [[nodiscard]] bool is_bool() const {
    return !num_layers && !plan.offloads &&
           (plan.recompute == Recompute::kAll || plan.recompute == Recompute::kNothing);
  }
  [[nodiscard]] bool recomputes() const { return plan.recompute != Recompute::kNothing; }
};

namespace detail {

// The long form.
struct LayerCheckpointingRecord {
  Recompute recompute = Recompute::kAll;    // what backward computes again instead of finding it kept
  bool offload = false;                     // what a recomputation starts from waits in host memory
  std::optional<std::int64_t> layers = {};  // the first ones of the whole model, which follow this; null: all

  static constexpr auto fields() {
    using Layers = LayerCheckpointingRecord;
    return record<Layers>(required("recompute", &Layers::recompute), defaulted("offload", &Layers::offload),
                          defaulted("layers", &Layers::layers, at_least(0)));
  }
  void validate(const ConfigPath& path) const {
    const bool is_of_whole_layers = recompute == Recompute::kAll || recompute == Recompute::kAllButAttention;
    D9D_CHECK(!offload || is_of_whole_layers, ConfigError, path / "offload",
              "expected false with recompute = ", enum_name(recompute),
              ", got true: what whole layers start from is offloaded. Choose all or all_but_attention.");
  }
};

template <>
struct TypeOf<LayerCheckpointing> final : ValueType {
  void parse(const Json& json, const ConfigPath& path, const Range& range, void* target) const override {
    auto& layers = as<LayerCheckpointing>(target);
    if (!json.is_object()) {
      bool of_all_layers = false;
      json_type<bool>().parse(json, path, range, &of_all_layers);
      layers = of_all_layers;
      return;
    }
    LayerCheckpointingRecord written;
    json_type<LayerCheckpointingRecord>().parse(json, path, range, &written);
    layers = {{.recompute = written.recompute, .offloads = written.offload}, written.layers};
  }
  [[nodiscard]] Json write(const void* value) const override {
    const auto& layers = as<LayerCheckpointing>(value);
    if (layers.is_bool()) return layers.recomputes();
    const LayerCheckpointingRecord written{
        .recompute = layers.plan.recompute, .offload = layers.plan.offloads, .layers = layers.num_layers};
    return json_type<LayerCheckpointingRecord>().write(&written);
  }
  [[nodiscard]] Json schema(const Range& range) const override {
    return {
        {"anyOf", Json::array({json_type<bool>().schema(range), json_type<LayerCheckpointingRecord>().schema({})})}};
  }
};

}  // namespace detail

}  // namespace d9d
