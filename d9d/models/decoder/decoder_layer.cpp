#include "d9d/models/decoder/decoder_layer.h"

namespace d9d {

std::vector<ActivationPlan> DecoderLayer::activation_plans() const {
  using enum Recompute;
  std::vector<ActivationPlan> plans = {{kNothing}, {kAllButAttention}, {kAllButAttention, true}, {kAll}, {kAll, true}};
  if (feed_forward() != nullptr) plans.push_back({kFeedForward});
  return plans;
}

void DecoderLayer::set_activation_plan(const ActivationPlan& plan) {
  using enum Recompute;
  Module::set_activation_plan(plan);
  if (const auto child = feed_forward()) child->set_activation_checkpointing(plan.recompute == kFeedForward);
  set_activation_checkpointing(plan.recompute == kAll || plan.recompute == kAllButAttention,
                               {.keeps_results = plan.recompute == kAllButAttention, .offloads = plan.offloads});
}

}  // namespace d9d
