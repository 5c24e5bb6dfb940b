// Chooses how many units of each kind follow each of some options, so that they take the least time within limits of
// bytes. choose_activation_plans() calls it.
//
// Example
//   // 28 units of 10 ms and 9 bytes, or 13 ms and 1 byte, within 100 bytes of one memory and 0 of another
//   const std::vector<CountOption> options = {{0.010, {9, 0}}, {0.013, {1, 0}}};
//   choose_counts({.num_units = {28}, .options = {options}, .limits = {100, 0}});    // {{9, 19}}
#pragma once

#include <cstdint>
#include <vector>

namespace d9d {

struct CountOption {
  double seconds = 0;         // of one unit
  std::vector<double> bytes;  // that one unit takes, by limit
};

struct CountRequest {
  std::vector<std::int64_t> num_units;            // by kind
  std::vector<std::vector<CountOption>> options;  // by kind, at least one of each
  std::vector<double> limits;                     // bytes of all units, at least two limits
};

// Returns the number of units by kind and option; empty if nothing fits. No other choice takes 0.1 % less time. Where
// there are too many to try all, it is the best that changes of one and two units lead to.
[[nodiscard]] std::vector<std::vector<std::int64_t>> choose_counts(const CountRequest& request);

}  // namespace d9d
