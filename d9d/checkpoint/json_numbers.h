// Encodes NaN and the infinities, which JSON text cannot represent.
//
//   NaN and the infinities          {"non_finite": "nan"}, "inf" or "-inf"
//   an object {"non_finite": x}     {"non_finite": [x]}
//
// Example
//   file << as_text_json(values).dump();
//   values = from_text_json(nlohmann::ordered_json::parse(file));       // the same values
#pragma once

#include <nlohmann/json.hpp>

namespace d9d {

// as_text_json() throws StateError if `values` contains a binary value or a string that is not UTF-8.
[[nodiscard]] nlohmann::ordered_json as_text_json(const nlohmann::ordered_json& values);
[[nodiscard]] nlohmann::ordered_json from_text_json(const nlohmann::ordered_json& json);

}  // namespace d9d
