#include <string>

#include "d9d/base/check.h"
#include "d9d/tokenizer/tokenizer.h"

#include "tests/fuzz/targets.h"
#include "tests/support/byte_tokenizer.h"

namespace d9d::fuzz {
namespace {

// Inputs are short: "BYTES" is a vocabulary of all bytes, without which nothing is read.
std::string with_vocabulary(std::string text) {
  static const std::string vocabulary = nlohmann::json::parse(test::byte_tokenizer()).at("model").at("vocab").dump();
  const std::string mark = "\"BYTES\"";
  const auto at = text.find(mark);
  if (at != std::string::npos) text.replace(at, mark.size(), vocabulary);
  return text;
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool add_special_tokens : {false, true}) {
    const Encoding encoding = tokenizer.encode(text, {.add_special_tokens = add_special_tokens, .with_offsets = true});
    D9D_ASSERT(encoding.offsets.size() == encoding.ids.size(), "offsets of ", encoding.ids.size(), " tokens");
    for (const auto& [begin, end] : encoding.offsets) {
      D9D_ASSERT(begin >= 0 && begin <= end && end <= std::ssize(text), "offsets ", begin, ", ", end);
    }
    (void)tokenizer.decode(encoding.ids);
  }
}

}  // namespace

void tokenizer_json(Bytes file) {
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  try {
    const Tokenizer tokenizer = Tokenizer::from_json(with_vocabulary(text), "fuzzed");
    use(tokenizer, "I'll take 1234 \u00c4pfel,\r\n\n  don't\u3000\u65e5\u672c<s> \u0041\u030a");
    use(tokenizer, "");
    use(tokenizer, std::string(40, 'a'));
  } catch (const ConfigError&) {
  }
}

}  // namespace d9d::fuzz
