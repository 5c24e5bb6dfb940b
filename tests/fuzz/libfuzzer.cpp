// The entry point of libFuzzer for one target: -DD9D_FUZZ_TARGET=manifest.
#include <cstdint>

#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  d9d::fuzz::D9D_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
