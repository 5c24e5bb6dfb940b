// CRC-32C (Castagnoli, RFC 3720 appendix B.4), which guards the records of TensorBoard's event files.
//
// Example
//   d9d::crc32c("123456789");  // 0xe3069283
#pragma once

#include <cstdint>
#include <string_view>

namespace d9d {

[[nodiscard]] std::uint32_t crc32c(std::string_view bytes);

}  // namespace d9d
