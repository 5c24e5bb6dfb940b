// The costs of a pipeline: times in one unit throughout (seconds, or forwards of a stage), and bytes.
//
// Example
//   {"stages": [{"forward": 1.0, "backward": 2.1, "backward_input": 1.2, "backward_weight": 0.9}],
//    "link": {"latency": 0.01, "time": 0.1}}
// By default a forward, an input pass (I) and a weight pass (W) take 1, a whole backward 2 and messages nothing, and a
// microbatch keeps 1 byte from its forward to the end of its backward; stages keep nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/base/record.h"
#include "d9d/pipelining/program/action.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d {

// Costs of one microbatch on a stage, and the bytes that the stage keeps without any microbatch.
struct StageCosts {
  double forward = 1;
  double backward = 2;
  double backward_input = 1;
  double backward_weight = 1;
  double activation_bytes = 1;  // kept from F until B or I
  double deferred_bytes = 1;    // kept from I until W
  double resident_bytes = 0;    // kept all the time: parameters, gradients, optimiser states

  static constexpr auto fields() {
    using Costs = StageCosts;
    return record<Costs>(defaulted("forward", &Costs::forward, at_least(0)),
                         defaulted("backward", &Costs::backward, at_least(0)),
                         defaulted("backward_input", &Costs::backward_input, at_least(0)),
                         defaulted("backward_weight", &Costs::backward_weight, at_least(0)),
                         defaulted("activation_bytes", &Costs::activation_bytes, at_least(0)),
                         defaulted("deferred_bytes", &Costs::deferred_bytes, at_least(0)),
                         defaulted("resident_bytes", &Costs::resident_bytes, at_least(0)));
  }
};

// Costs of one message: it occupies its link for `time` and is delivered `latency` after that.
struct LinkCosts {
  double latency = 0;
  double time = 0;

  static constexpr auto fields() {
    return record<LinkCosts>(defaulted("latency", &LinkCosts::latency, at_least(0)),
                             defaulted("time", &LinkCosts::time, at_least(0)));
  }
};

// Costs of a link that differs from PipelineCosts::link.
struct OneLinkCosts {
  std::int64_t from = 0;  // rank
  std::int64_t to = 0;
  LinkCosts costs = {};

  static constexpr auto fields() {
    using Link = OneLinkCosts;
    return record<Link>(required("from", &Link::from, at_least(0)), required("to", &Link::to, at_least(0)),
                        flattened(&Link::costs));
  }
};

struct PipelineCosts {
  std::vector<StageCosts> stages = {};   // one for each stage, one for all stages, or none: default costs
  LinkCosts link = {};                   // costs of every link that is not in `links`
  std::vector<OneLinkCosts> links = {};  // links whose costs differ from `link`
  double composed_overlap = 0;  // of two composed computations, the share of the shorter one that the longer one hides

  static constexpr auto fields() {
    using Costs = PipelineCosts;
    return record<Costs>(defaulted("stages", &Costs::stages), defaulted("link", &Costs::link),
                         defaulted("links", &Costs::links),
                         defaulted("composed_overlap", &Costs::composed_overlap, between(0, 1)));
  }
};

// Throws ConfigError unless `costs.stages` has no elements, one, or num_stages.
void check_costs(const PipelineCosts& costs, std::int64_t num_stages);

[[nodiscard]] const StageCosts& costs_of(const PipelineCosts& costs, StageIndex stage);
[[nodiscard]] const LinkCosts& costs_of(const PipelineCosts& costs, const DirectedLink& link);
[[nodiscard]] double duration_of(const PipelineCosts& costs, const ComputeAction& action);

// Returns how long before the end of `first` the computation `second`, which is composed with it, may begin.
[[nodiscard]] double overlap_of(const PipelineCosts& costs, const ComputeAction& first, const ComputeAction& second);

extern template const ValueType& json_type<PipelineCosts>();

}  // namespace d9d
