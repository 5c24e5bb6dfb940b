// A value of a JSON file with its location, so that error messages can name file and key.
//
// Example
//   const JsonNode model = file.at("model");
//   const std::string type = model.at("type").string();   // ConfigError: [tokenizer] tokenizer.json: model.type: ...
//   model.expect_keys({"type", "vocab", "merges"});
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace d9d::detail {

class JsonNode {
 public:
  // `json` must outlive this object.
  JsonNode(const nlohmann::json& json, std::string file, std::string keys = {})
      : json_(&json), file_(std::move(file)), keys_(std::move(keys)) {}

  [[nodiscard]] const nlohmann::json& json() const { return *json_; }
  [[nodiscard]] bool is_null() const { return json_->is_null(); }

  // Members of an object. If the key is missing, at() throws and find() returns nullopt; find() also does so for null.
  [[nodiscard]] JsonNode at(std::string_view key) const;
  [[nodiscard]] std::optional<JsonNode> find(std::string_view key) const;
  // Throws for a key that is not among `keys`, as such a key would otherwise be ignored silently.
  void expect_keys(std::initializer_list<std::string_view> keys) const;

  // The elements of a list.
  [[nodiscard]] std::vector<JsonNode> elements() const;

  [[nodiscard]] const std::string& string() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::uint32_t unsigned_integer() const;

  // Throws ConfigError: "<place>expected <expected>, got <value>. <remedy>".
  [[noreturn]] void refuse(std::string_view expected, std::string_view remedy) const;
  // "[tokenizer] <file>: <keys>: ".
  [[nodiscard]] std::string place() const;

 private:
  [[nodiscard]] JsonNode child(const nlohmann::json& json, std::string_view key) const;

  const nlohmann::json* json_;
  std::string file_;
  std::string keys_;
};

}  // namespace d9d::detail
