#include "d9d/base/io/numbered_folder.h"

#include <charconv>
#include <string>
#include <system_error>

namespace d9d {

std::optional<std::int64_t> number_of_folder(const std::filesystem::path& folder, std::string_view prefix) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(prefix)) return std::nullopt;
  std::int64_t number = 0;
  const char* const begin = name.data() + prefix.size();
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || last != end || begin == end || number < 0) return std::nullopt;
  return number;
}

}  // namespace d9d
