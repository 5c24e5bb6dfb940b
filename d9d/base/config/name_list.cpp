#include "d9d/base/config/name_list.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace d9d {
namespace {

constexpr std::size_t kMaxLength = 64;  // longer names are not compared

// Insertions, deletions, substitutions and swaps of neighbours from a to b (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  const std::size_t width = b.size() + 1;
  std::vector<std::size_t> table((a.size() + 1) * width);
  const auto at = [&](std::size_t i, std::size_t j) -> std::size_t& { return table[i * width + j]; };
  for (std::size_t i = 0; i <= a.size(); ++i) at(i, 0) = i;
  for (std::size_t j = 0; j <= b.size(); ++j) at(0, j) = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
      at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, substituted});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
      }
    }
  }
  return table.back();
}

}  // namespace

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known) {
  std::string_view nearest;
  if (name.size() > kMaxLength) return nearest;
  // A third of the letters may differ. Words of three letters are too similar to each other ("gpu" is not a misspelt
  // "cpu").
  const bool is_short = name.size() <= 3;
  std::size_t least = std::max<std::size_t>(1, name.size() / 3) + 1;
  for (const std::string_view candidate : known) {
    const std::size_t distance = edit_distance(name, candidate);
    if (is_short && candidate.size() == name.size()) continue;
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, std::span<const std::string_view> known) {
  if (const auto nearest = nearest_name(name, known); !nearest.empty()) {
    return " Did you mean '" + std::string(nearest) + "'?";
  }
  return known.empty() ? " No key is known here." : " Known: " + quoted_list(known) + ".";
}

std::string quoted_list(std::span<const std::string_view> names) {
  std::string list;
  for (const std::string_view name : names) {
    if (!list.empty()) list += ", ";
    list += '\'' + std::string(name) + '\'';
  }
  return list;
}

}  // namespace d9d
