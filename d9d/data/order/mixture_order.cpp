#include "d9d/data/order/mixture_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "d9d/base/check.h"

namespace d9d {

namespace {

__extension__ using Wide = __int128;
constexpr double kWhole = 0x1.0p32;

}  // namespace

MixtureOrder::MixtureOrder(const std::vector<double>& weights) {
  double sum = 0;
  for (const double weight : weights) {
    D9D_CHECK(std::isfinite(weight) && weight > 0, ConfigError, "[data::MixtureOrder] expected weights > 0, got ",
              weight, ". Leave the source out.");
    sum += weight;
  }
  D9D_CHECK(!weights.empty(), ConfigError,
            "[data::MixtureOrder] expected at least one source, got none. List the sources of the mixture.");
  for (const double weight : weights) {
    weights_.push_back(std::llround(weight / sum * kWhole));
    D9D_CHECK(weights_.back() > 0, ConfigError,
              "[data::MixtureOrder] expected weights of at least 2^-32 of their sum, ", "got ", weight, " of ", sum,
              ". Leave the source out.");
  }
}

// Sample j of source s is due at (2j + 1) / (2 W_s). Sample i of source r precedes it if (2i + 1) W_s < (2j + 1) W_r,
// or if both sides are equal and r < s.
std::int64_t MixtureOrder::position_of(const Place& place) const {
  const Wide own = weights_[place.source];
  Wide position = 0;
  for (std::int64_t source = 0; source < std::ssize(weights_); ++source) {
    if (source == place.source) {
      position += place.index;
      continue;
    }
    const Wide due = (2 * Wide{place.index} + 1) * weights_[source] + own - (source < place.source ? 0 : 1);
    position += due / (2 * own);  // due >= 0, so the division rounds down
  }
  return static_cast<std::int64_t>(position);
}

MixtureOrder::Place MixtureOrder::operator()(std::int64_t position) const {
  D9D_ASSERT(position >= 0, "position ", position);
  const Wide sum = std::accumulate(weights_.begin(), weights_.end(), std::int64_t{0});
  const std::int64_t num_sources = std::ssize(weights_);
  for (std::int64_t source = 0; source < num_sources; ++source) {
    // The position of a sample differs from its due time, counted in samples, by at most half a sample per source. So
    // the index is close to the source's share of `position`, and the search needs only a few indices around it.
    const auto near = static_cast<std::int64_t>(Wide{position} * weights_[source] / sum);
    std::int64_t low = std::max<std::int64_t>(near - num_sources - 1, 0), high = near + num_sources + 2;
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (position_of({source, middle}) < position) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    if (position_of({source, low}) == position) return {source, low};
  }
  D9D_ASSERT(false, "no source at position ", position);
}

}  // namespace d9d
