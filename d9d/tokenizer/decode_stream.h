// Text of tokens that come one by one, as while a model generates: a character whose bytes are not all there is held
// back.
//
// Example
//   d9d::DecodeStream stream(tokenizer);
//   for (const std::uint32_t id : generated) std::cout << stream.step(id) << std::flush;
//   std::cout << stream.finish();
//
// What it returns makes up tokenizer.decode(all ids). One thread an object; the tokenizer outlives it.
#pragma once

#include <cstdint>
#include <string>

#include "d9d/tokenizer/tokenizer.h"

namespace d9d {

class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, const DecodeOptions& options = {})
      : tokenizer_(tokenizer), options_(options) {}

  // What can be said after this token; empty while a character is incomplete.
  [[nodiscard]] std::string step(std::uint32_t id);
  // What was held back, as U+FFFD. The stream begins anew.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer& tokenizer_;
  DecodeOptions options_;
  std::string pending_;
};

}  // namespace d9d
