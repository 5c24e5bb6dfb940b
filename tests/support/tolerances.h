// How far a result may be from its oracle: the one table of tolerances. All are relative to a tensor's scale, see
// compare.h.
#pragma once

#include <array>
#include <string_view>

namespace d9d::test {

struct Tolerance {
  std::string_view name;
  double value;
  std::string_view reason;
};

inline constexpr std::array kTolerances = {
    Tolerance{"fp64", 1e-9, "the same mathematics in another order; a wrong term shows at 1e-3 or more"},
    Tolerance{"fp32 training loss", 2e-5, "losses after steps that each amplify the rounding of near-zero gradients"},
    Tolerance{"fp32", 1e-5, "sums of up to a few thousand terms round at about 1e-7 each"},
};

[[nodiscard]] constexpr const Tolerance& tolerance(std::string_view name) {
  for (const Tolerance& entry : kTolerances) {
    if (entry.name == name) return entry;
  }
  throw "[test::tolerance] expected a name of kTolerances";
}

}  // namespace d9d::test
