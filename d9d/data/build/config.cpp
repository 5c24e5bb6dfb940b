#include "d9d/data/build/config.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {

void ColumnsConfig::validate(const ConfigPath& path) const {
  if (!messages_column) {
    D9D_CHECK(!chat_template, ConfigError, path,
              "expected messages_column with chat_template, got none. Name the column.");
    return;
  }
  D9D_CHECK(!prompt_column, ConfigError, path,
            "expected one of messages_column and prompt_column, got both. Remove one of the two.");
  D9D_CHECK(tokenization.tokenizer, ConfigError, path,
            "expected a tokenizer with messages_column, got none. Name its tokenizer.json.");
  D9D_CHECK(!tokenization.add_special_tokens, ConfigError, path,
            "expected add_special_tokens = false with messages_column, whose chat template writes them, got true.");
}

template const ValueType& json_type<SourceConfig>();
template const ValueType& json_type<DataConfig>();

namespace {

struct SequenceLength {
  template <class Source>
  std::optional<std::int64_t> operator()(const DataOf<Source>& data) const {
    return data.source.sequence.sequence_length;
  }
  std::optional<std::int64_t> operator()(const MixtureDataConfig& data) const {
    std::optional<std::int64_t> longest;
    for (const MixedSourceConfig& each : data.sources) {
      const auto length = [](const auto& source) { return source.sequence.sequence_length; };
      longest = std::max(longest.value_or(0), std::visit(length, each.source));
    }
    return longest;
  }
  std::optional<std::int64_t> operator()(const DatasetDataConfig& /*data*/) const { return std::nullopt; }
};

}  // namespace

std::optional<std::int64_t> sequence_length_of(const DataConfig& config) {
  return std::visit(SequenceLength(), config);
}

}  // namespace d9d
