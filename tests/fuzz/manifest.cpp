#include "d9d/checkpoint/manifest.h"

#include <string>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/model_state/io/block_checksums.h"

#include "tests/fuzz/targets.h"

namespace d9d::fuzz {
namespace {

// A checksum stops almost every change: the text gets the one that it should have.
std::string with_checksum(const std::string& text) {
  const auto json = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return text;
  nlohmann::ordered_json rest = json;
  rest.erase("checksum");
  try {
    const std::string checked = rest.dump();
    nlohmann::ordered_json manifest = {{"checksum", checksum(std::as_bytes(std::span(checked)))}};
    manifest.update(rest);
    return manifest.dump();
  } catch (const nlohmann::json::exception&) {  // a name that is no UTF-8
    return text;
  }
}

}  // namespace

void manifest(Bytes file) {
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  for (const std::string& each : {text, with_checksum(text)}) {
    try {
      (void)parse_manifest(each, "fuzzed");
    } catch (const IoError&) {
    }
  }
}

}  // namespace d9d::fuzz
