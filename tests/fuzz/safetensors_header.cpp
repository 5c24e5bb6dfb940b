#include "d9d/model_state/io/safetensors_header.h"

#include "d9d/base/check.h"

#include "tests/fuzz/targets.h"

namespace d9d::fuzz {

void safetensors_header(Bytes file) {
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(file, "fuzzed");
  } catch (const IoError&) {
    return;
  }
  std::size_t bytes = 0;
  for (const auto& [name, entry] : header.entries) {
    D9D_ASSERT(entry.offset <= file.size() && entry.size <= file.size() - entry.offset, name, " ends behind the file");
    bytes += entry.size;
  }
  D9D_ASSERT(bytes < file.size(), "entries have more bytes than the file");
}

}  // namespace d9d::fuzz
