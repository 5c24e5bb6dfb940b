// Decodes tokens one by one, for example while a model generates. A character is held back until all of its bytes are
// decoded.
//
// Example
//   d9d::DecodeStream stream(tokenizer);
//   for (const std::uint32_t id : generated) std::cout << stream.step(id) << std::flush;
//   std::cout << stream.finish();
//
// The concatenation of all results equals tokenizer.decode(all ids). An object may be used by one thread only, and the
// tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <string>

#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, const DecodeOptions& options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // Returns the text that is complete after this token; it may be empty while a character is incomplete.
  [[nodiscard]] std::string step(std::uint32_t id);
  // Returns U+FFFD for bytes that were held back, and resets the stream.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  std::string pending_;
};

}  // namespace d9d
