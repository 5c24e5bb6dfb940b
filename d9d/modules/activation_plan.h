// How a unit of a model, such as a decoder layer, treats the activations of its forward until its backward.
//
// Example
//   for (const auto& layer : decoder->layers()) layer->set_activation_plan({Recompute::kAllButAttention, true});
#pragma once

#include <cstdint>

#include "d9d/base/enum_names.h"

namespace d9d {

// What backward computes again instead of finding it kept.
enum class Recompute : std::uint8_t {
  kNothing,
  kFeedForward,      // of a layer, what follows its attention
  kAllButAttention,  // the layer, except for the result of its attention core, which fused kernels keep (kept_result())
  kAll,
};
constexpr auto enum_names(Recompute) {
  return std::to_array<EnumName<Recompute>>({{Recompute::kNothing, "nothing"},
                                             {Recompute::kFeedForward, "feed_forward"},
                                             {Recompute::kAllButAttention, "all_but_attention"},
                                             {Recompute::kAll, "all"}});
}

struct ActivationPlan {
  Recompute recompute = Recompute::kNothing;
  // What a recomputation of the whole unit starts from waits in host memory (CheckpointOptions::offloads).
  bool offloads = false;

  bool operator==(const ActivationPlan&) const = default;
};

}  // namespace d9d
