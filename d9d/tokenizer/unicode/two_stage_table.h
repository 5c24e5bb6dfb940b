// A table with a value for each code point, in blocks of 256 values; equal blocks are stored once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

namespace d9d::detail {

constexpr char32_t kNumCodePoints = 0x110000;

template <class T>
class TwoStageTable {
 public:
  // `flat`: kNumCodePoints values.
  explicit TwoStageTable(const std::vector<T>& flat) {
    std::map<std::vector<T>, std::uint16_t> known;
    for (std::size_t block = 0; block < block_of_.size(); ++block) {
      const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(block * 256);
      const auto [entry, is_new] = known.emplace(std::vector<T>(begin, begin + 256), known.size());
      if (is_new) blocks_.insert(blocks_.end(), entry->first.begin(), entry->first.end());
      block_of_[block] = entry->second;
    }
  }

  [[nodiscard]] T operator[](char32_t code_point) const {
    return blocks_[(block_of_[code_point >> 8] << 8) | (code_point & 0xFF)];
  }

 private:
  std::array<std::uint16_t, kNumCodePoints / 256> block_of_ = {};
  std::vector<T> blocks_;
};

}  // namespace d9d::detail
