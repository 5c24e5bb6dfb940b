// The configuration of context parallelism: how attention reaches the keys and values of other ranks' positions.
#pragma once

#include "d9d/base/enum_names.h"
#include "d9d/base/record.h"

namespace d9d {

enum class ContextAttention : std::uint8_t { kAuto, kGathered, kHeads, kRing };
constexpr auto enum_names(ContextAttention) {
  return std::to_array<EnumName<ContextAttention>>({{ContextAttention::kAuto, "auto"},
                                                    {ContextAttention::kGathered, "gathered"},
                                                    {ContextAttention::kHeads, "heads"},
                                                    {ContextAttention::kRing, "ring"}});
}

struct ContextParallelConfig {
  // Each rank gathers all keys and values; or attends with some heads to all positions; or computes while keys and
  // values go round. Auto: the fastest that takes the call. See choose_context_attention().
  ContextAttention attention = ContextAttention::kAuto;

  static constexpr auto fields() {
    return record<ContextParallelConfig>(defaulted("attention", &ContextParallelConfig::attention));
  }
};

}  // namespace d9d
