// The section "dpo" of a job that trains on preferences.
//
// Example
//   {"beta": 0.1, "reference": "auto"}
#pragma once

#include "d9d/base/record.h"
#include "d9d/loop/task/task.h"

namespace d9d {

struct DpoConfig {
  double beta = 0.1;                                     // how strongly the model is kept near the reference
  ReferenceWeights reference = ReferenceWeights::kAuto;  // the model that preferences are measured against

  static constexpr auto fields() {
    return record<DpoConfig>(defaulted("beta", &DpoConfig::beta, greater_than(0)),
                             defaulted("reference", &DpoConfig::reference));
  }
};

}  // namespace d9d
