// Reads what wheel_oracle.py wrote.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "d9d/tokenizer/encoding.h"

namespace d9d::test {

struct WheelRecord {
  std::string text;
  std::vector<std::uint32_t> ids;
  std::vector<TokenOffset> offsets;
  std::string without_special;  // decoded
  std::string decoded;
};

class WheelRecords {
 public:
  explicit WheelRecords(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
  }

  [[nodiscard]] bool has_next() const { return position_ < bytes_.size(); }
  WheelRecord next() {
    WheelRecord record;
    record.text = take_text();
    record.ids = take_numbers();
    const auto begins = take_numbers();
    const auto ends = take_numbers();
    for (std::size_t i = 0; i < begins.size(); ++i) record.offsets.push_back({begins[i], ends[i]});
    record.without_special = take_text();
    record.decoded = take_text();
    return record;
  }

 private:
  std::uint32_t take_number() {
    std::uint32_t number = 0;
    std::memcpy(&number, bytes_.data() + position_, sizeof number);
    position_ += sizeof number;
    return number;
  }
  std::string take_text() {
    const std::uint32_t size = take_number();
    position_ += size;
    return bytes_.substr(position_ - size, size);
  }
  std::vector<std::uint32_t> take_numbers() {
    std::vector<std::uint32_t> numbers(take_number());
    for (std::uint32_t& number : numbers) number = take_number();
    return numbers;
  }

  std::string bytes_;
  std::size_t position_ = 0;
};

}  // namespace d9d::test
