#include "d9d/data/build/config.h"

#include <algorithm>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"

namespace d9d {

void ColumnsConfig::validate(const ConfigPath& path) const {
  D9D_CHECK(chat_template_kwargs.is_object(), ConfigError, path,
            "expected an object as chat_template_kwargs, such as {\"enable_thinking\": false}, got ",
            chat_template_kwargs.dump(), ". Correct it.");
  for (const char* const own : {"messages", "tools", "add_generation_prompt"}) {
    D9D_CHECK(!chat_template_kwargs.contains(own), ConfigError, path,
              "expected variables in chat_template_kwargs that rows do not set, got \"", own, "\". Remove it.");
  }
  if (pairs) {
    D9D_CHECK(!messages_column && !prompt_column, ConfigError, path,
              "expected pairs without messages_column and prompt_column, whose place they take, got ",
              messages_column ? "messages_column" : "prompt_column", ". Name the prompt in pairs.prompt_column.");
    D9D_CHECK(pairs->format == PairFormat::kMessages || pairs->prompt_column, ConfigError, path,
              "expected pairs.prompt_column with pairs.format = text, got none. Name the column.");
  }
  if (!has_conversations()) {
    const bool has_kwargs = !chat_template_kwargs.empty();
    D9D_CHECK(!chat_template && !tools_column && !python && !has_kwargs, ConfigError, path,
              "expected messages_column with ",
              chat_template  ? "chat_template"
              : tools_column ? "tools_column"
              : has_kwargs   ? "chat_template_kwargs"
                             : "python",
              ", or pairs of messages, got none. Name the column.");
    return;
  }
  D9D_CHECK(!prompt_column, ConfigError, path,
            "expected one of messages_column and prompt_column, got both. Remove one of the two.");
  D9D_CHECK(tokenization.tokenizer, ConfigError, path, "expected a tokenizer with ",
            messages_column ? "messages_column" : "pairs of messages", ", got none. Name its tokenizer.json.");
  D9D_CHECK(!tokenization.add_special_tokens, ConfigError, path, "expected add_special_tokens = false with ",
            messages_column ? "messages_column" : "pairs of messages", ", whose chat template writes them, got true.");
  D9D_CHECK(!pairs || !tokenization.end_of_document, ConfigError, path,
            "expected no end_of_document with pairs of messages, whose chat template ends them, got one. Remove it.");
}

template const ValueType& json_type<SourceConfig>();
template const ValueType& json_type<DataConfig>();

namespace {

bool is_streamed(const SequenceConfig& sequence) { return std::holds_alternative<StreamedViewConfig>(sequence.view); }

struct IsStreamed {
  template <class Source>
  bool operator()(const DataOf<Source>& data) const {
    return is_streamed(data.source.sequence);
  }
  bool operator()(const MixtureDataConfig& data) const {
    return std::ranges::any_of(data.sources, [](const MixedSourceConfig& each) {
      return std::visit([](const auto& source) { return is_streamed(source.sequence); }, each.source);
    });
  }
  bool operator()(const DatasetDataConfig& /*data*/) const { return false; }
};

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

DataConfig whole_set(DataConfig config) {
  if (std::visit(IsStreamed(), config)) return config;
  std::visit(
      [](auto& data) {
        if (!data.loader.drop_last) data.loader.drop_last = false;
      },
      config);
  return config;
}

std::optional<std::int64_t> sequence_length_of(const DataConfig& config) {
  return std::visit(SequenceLength(), config);
}

}  // namespace d9d
