// Maps each position in a weighted mixture to a source and an index among that source's samples. The order is endless,
// and each position is computed independently of the others.
//
// Example
//   const MixtureOrder order({0.7, 0.3});
//   const MixtureOrder::Place place = order(1000);        // {.source = 0, .index = 700}
//
// Sample j of a source of weight w is due at time (j + 1/2) / w. Positions number the samples in the order of these
// times; samples due at the same time are in the order of their sources. So by any time t a source has given t * w
// samples, within half a sample. This is Webster's method of apportionment. Weights are kept as multiples of 2^-32 of
// their sum. Source: M. L. Balinski, H. P. Young, "Fair representation", 1982.
#pragma once

#include <cstdint>
#include <vector>

namespace d9d {

class MixtureOrder {
 public:
  struct Place {
    std::int64_t source = 0;
    std::int64_t index = 0;  // among the source's samples, counted from 0 without end
    friend bool operator==(const Place&, const Place&) = default;
  };

  // Throws ConfigError if there is no weight, if one is not positive and finite, or if one rounds to 0 units of 2^-32
  // of the sum.
  explicit MixtureOrder(const std::vector<double>& weights);

  // Expects position >= 0. Thread-safe.
  [[nodiscard]] Place operator()(std::int64_t position) const;

  // The inverse of operator(): returns the position of a source's sample.
  [[nodiscard]] std::int64_t position_of(const Place& place) const;

 private:
  std::vector<std::int64_t> weights_;  // share of each source in the samples, in units of 2^-32
};

}  // namespace d9d
