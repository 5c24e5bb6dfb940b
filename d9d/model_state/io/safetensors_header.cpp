#include "d9d/model_state/io/safetensors_header.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/json_integer.h"
#include "d9d/base/io/git_lfs.h"

namespace d9d {
namespace {
using json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are mapped as they lie in the file");

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxHeaderBytes = 100'000'000;  // the limit of the Python package
constexpr const char* kMetadataKey = "__metadata__";

struct FileDtype {
  std::string_view name;
  c10::ScalarType type;
};
// In ascending order of the rank by which the Python package sorts tensors in a file.
constexpr FileDtype kDtypes[] = {
    {"BOOL", c10::kBool},
    {"U8", c10::kByte},
    {"I8", c10::kChar},
    {"F8_E5M2", c10::kFloat8_e5m2},
    {"F8_E4M3", c10::kFloat8_e4m3fn},
    {"F8_E8M0", c10::kFloat8_e8m0fnu},
    {"F8_E4M3FNUZ", c10::kFloat8_e4m3fnuz},
    {"F8_E5M2FNUZ", c10::kFloat8_e5m2fnuz},
    {"I16", c10::kShort},
    {"U16", c10::kUInt16},
    {"F16", c10::kHalf},
    {"BF16", c10::kBFloat16},
    {"I32", c10::kInt},
    {"U32", c10::kUInt32},
    {"F32", c10::kFloat},
    {"C64", c10::kComplexFloat},
    {"F64", c10::kDouble},
    {"I64", c10::kLong},
    {"U64", c10::kUInt64},
};

// Throws the errors of one file, with the file's name.
struct Complaint {
  const std::string& path;

  template <class... Parts>
  [[noreturn]] void operator()(const Parts&... parts) const {
    throw IoError(cat("[model_state::safetensors] '", path, "': expected ", parts...,
                      ". The file is damaged or no safetensors file; write or download it again."));
  }
};

json parse_json(std::string_view text, const Complaint& complain) {
  if (text.empty() || text.front() != '{') complain("a header that starts with '{', got something else");
  std::vector<std::set<std::string>> keys_of_open_objects;
  const json::parser_callback_t check = [&](int depth, json::parse_event_t event, json& parsed) {
    const bool opens = event == json::parse_event_t::object_start || event == json::parse_event_t::array_start;
    if (opens && depth > 2) complain("a header of at most three levels, got a deeper one");
    if (event == json::parse_event_t::object_start) keys_of_open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) keys_of_open_objects.pop_back();
    if (event == json::parse_event_t::key && !keys_of_open_objects.back().insert(parsed.get<std::string>()).second) {
      complain("each key once, got ", parsed.dump(), " twice");
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::exception& error) {
    complain("a header of valid JSON, got: ", error.what());
  }
}

std::optional<std::size_t> as_size(const json& value) {
  const auto integer = value.is_number_unsigned() ? find_json_integer(value) : std::nullopt;
  return integer ? std::optional(static_cast<std::size_t>(*integer)) : std::nullopt;
}

std::vector<std::int64_t> parse_shape(const json& value, std::size_t element_size, const std::string& name,
                                      const Complaint& complain) {
  if (!value.is_array()) complain("a list as shape of '", name, "', got ", value.dump());
  std::vector<std::int64_t> shape;
  auto num_bytes_bound = static_cast<std::int64_t>(element_size);  // a dim of size 0 counts as 1, as in strides
  for (const json& item : value) {
    const auto size = as_size(item);
    if (!size) complain("sizes >= 0 in the shape of '", name, "', got ", value.dump());
    shape.push_back(static_cast<std::int64_t>(*size));
    if (__builtin_mul_overflow(num_bytes_bound, std::max<std::int64_t>(shape.back(), 1), &num_bytes_bound)) {
      complain("a shape of '", name, "' whose byte count fits 63 bits, got ", value.dump());
    }
  }
  return shape;
}

SafetensorsEntry parse_entry(const std::string& name, const json& value, std::size_t data_start, std::size_t data_size,
                             const Complaint& complain) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    complain("dtype, shape and data_offsets for '", name, "', got ", value.dump());
  }
  const json& dtype_name = value["dtype"];
  const auto* dtype = std::ranges::find_if(kDtypes, [&](const FileDtype& known) { return dtype_name == known.name; });
  const bool is_known = dtype != std::end(kDtypes);
  if (!is_known && !dtype_name.is_string()) complain("a dtype for '", name, "', got ", dtype_name.dump());

  const std::size_t element_size = is_known ? c10::elementSize(dtype->type) : 1;
  std::vector<std::int64_t> shape = parse_shape(value["shape"], element_size, name, complain);
  const json& offsets = value["data_offsets"];
  const bool is_pair = offsets.is_array() && offsets.size() == 2;
  const auto begin = is_pair ? as_size(offsets[0]) : std::nullopt;
  const auto end = is_pair ? as_size(offsets[1]) : std::nullopt;
  if (!begin || !end || *begin > *end || *end > data_size) {
    complain("data_offsets of '", name, "' within the ", data_size, " bytes of data, got ", offsets.dump());
  }
  if (!is_known) {  // an error only if the tensor is used
    return {.dtype = c10::ScalarType::Undefined,
            .shape = std::move(shape),
            .offset = data_start + *begin,
            .size = *end - *begin,
            .unknown_dtype = dtype_name.get<std::string>()};
  }
  const std::size_t expected_size = element_size * static_cast<std::size_t>(c10::multiply_integers(shape));
  if (expected_size != *end - *begin) {
    complain(expected_size, " bytes for '", name, "' of dtype ", dtype->name, " and shape ", value["shape"].dump(),
             ", got ", *end - *begin);
  }
  return {.dtype = dtype->type, .shape = std::move(shape), .offset = data_start + *begin, .size = expected_size};
}

void check_coverage(const SafetensorsHeader& header, std::size_t data_start, std::size_t file_size,
                    const Complaint& complain) {
  std::map<std::pair<std::size_t, std::size_t>, const std::string*> by_offset;  // (offset, size), empty ones first
  for (const auto& [name, entry] : header.entries) {
    const auto [other, inserted] = by_offset.insert({{entry.offset, entry.size}, &name});
    if (!inserted && entry.size > 0)
      complain("tensors that do not overlap, got '", name, "' and '", *other->second, "'");
  }
  std::size_t covered = data_start;
  for (const auto& [range, name] : by_offset) {
    if (range.first < covered) complain("tensors that do not overlap, got '", *name, "' inside another one");
    if (range.first > covered)
      complain("data without holes, got ", range.first - covered, " bytes before '", *name, "'");
    covered = range.first + range.second;
  }
  if (covered != file_size) complain("no bytes after the last tensor, got ", file_size - covered);
}

const FileDtype& dtype_of(const TensorSource& source) {
  const auto* dtype = std::ranges::find(kDtypes, source.dtype, &FileDtype::type);
  D9D_CHECK(dtype != std::end(kDtypes), StateError, "[model_state::safetensors] expected tensor '", source.name,
            "' to have a dtype that the format knows, got ", source.dtype, ". Convert it first.");
  return *dtype;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file, const std::string& path) {
  const Complaint complain{path};
  D9D_CHECK(!is_git_lfs_pointer(file), IoError, "[model_state::safetensors] '", path,
            "': expected a safetensors file, ", kGitLfsRemedy);
  if (file.size() < kLengthBytes) complain("at least ", kLengthBytes, " bytes, got ", file.size());
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    complain("a header within the file of ", file.size(), " bytes and below ", kMaxHeaderBytes, ", got length ",
             length);
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  const std::size_t data_start = kLengthBytes + length;

  SafetensorsHeader header;
  const json root = parse_json(text, complain);
  for (const auto& [name, value] : root.items()) {
    if (name != kMetadataKey) {
      header.entries.emplace(name, parse_entry(name, value, data_start, file.size() - data_start, complain));
      continue;
    }
    if (!value.is_object()) complain("an object as __metadata__, got ", value.dump());
    for (const auto& [key, text_value] : value.items()) {
      if (!text_value.is_string()) complain("text as __metadata__ '", key, "', got ", text_value.dump());
      header.metadata.emplace(key, text_value.get<std::string>());
    }
  }
  check_coverage(header, data_start, file.size(), complain);
  return header;
}

std::vector<TensorSource> in_safetensors_order(std::vector<TensorSource> tensors) {
  std::ranges::sort(tensors, [](const TensorSource& left, const TensorSource& right) {
    const FileDtype *left_dtype = &dtype_of(left), *right_dtype = &dtype_of(right);
    return left_dtype != right_dtype ? left_dtype > right_dtype : left.name < right.name;
  });
  std::set<std::string_view> names = {kMetadataKey};
  for (const TensorSource& tensor : tensors) {
    D9D_CHECK(names.insert(tensor.name).second, StateError,
              "[model_state::safetensors] expected each tensor name once and none to be ", kMetadataKey, ", got '",
              tensor.name, "'. Rename one.");
  }
  return tensors;
}

std::string format_safetensors_header(std::span<const TensorSource> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  std::string text;
  const auto append = [&](const std::string& key, const nlohmann::ordered_json& value) {
    text += cat(text.empty() ? "{" : ",", json(key).dump(), ":", value.dump());
  };
  if (!metadata.empty()) append(kMetadataKey, metadata);
  std::int64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    const std::int64_t end = offset + num_bytes(tensor);
    append(tensor.name, {{"dtype", dtype_of(tensor).name}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}});
    offset = end;
  }
  text += text.empty() ? "{}" : "}";
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const std::uint64_t length = text.size();
  std::string header(reinterpret_cast<const char*>(&length), kLengthBytes);
  return header + text;
}

}  // namespace d9d
