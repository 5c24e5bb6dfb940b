#include "d9d/data/build/text_format.h"

#include <system_error>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/data/text/chat_encoder.h"
#include "d9d/data/text/pair_encoder.h"

namespace d9d {

namespace {

TextFormat format_of(const TokenizationConfig& config) {
  return {.tokenizer = config.tokenizer,
          .add_special_tokens = config.add_special_tokens,
          .end_of_document = config.end_of_document};
}

ChatRendererOptions chat_options(const ColumnsConfig& conversations) {
  const nlohmann::ordered_json& kwargs = conversations.chat_template_kwargs;
  return {.tokenizer = *conversations.tokenization.tokenizer,
          .chat_template = conversations.chat_template,
          .template_kwargs = kwargs.empty() ? "" : kwargs.dump(),
          .python = conversations.python};
}

std::optional<TextFormat> format_of_source(const TextSource& source) { return format_of(source.tokenization); }
std::optional<TextFormat> format_of_source(const TokensSource&) { return std::nullopt; }
std::optional<TextFormat> format_of_source(const MegatronSource&) { return std::nullopt; }
template <class Source>
requires requires(const Source& source) { source.columns; }
std::optional<TextFormat> format_of_source(const Source& source) {
  TextFormat format = format_of(source.columns.tokenization);
  if (source.columns.has_conversations()) format.chat = chat_options(source.columns);
  return format;
}

template <class Source>
std::optional<TextFormat> format_of_data(const DataOf<Source>& data) {
  return format_of_source(data.source);
}

// Whether two sources turn text into the same tokens: what they name differently may write the same.
bool are_alike(const TextFormat& one, const TextFormat& other) {
  if (one == other) return true;
  TextFormat with_chat_of_one = other;
  with_chat_of_one.chat = one.chat;
  if (!one.chat || !other.chat || one != with_chat_of_one) return false;
  return chat_renderer(*one.chat) == chat_renderer(*other.chat);
}

std::optional<TextFormat> format_of_data(const MixtureDataConfig& data) {
  std::optional<TextFormat> common;
  for (const MixedSourceConfig& mixed : data.sources) {
    const auto format = std::visit([](const auto& source) { return format_of_source(source); }, mixed.source);
    if (!format || (common && !are_alike(*common, *format))) return std::nullopt;
    common = format;
  }
  return common;
}

std::optional<TextFormat> format_of_data(const DatasetDataConfig& data) {
  return TextFormat{.tokenizer = data.tokenizer, .add_special_tokens = true};
}

}  // namespace

std::optional<TextFormat> text_format(const DataConfig& config) {
  return std::visit([](const auto& data) { return format_of_data(data); }, config);
}

std::optional<TextFormat> text_format(const SourceConfig& config) {
  return std::visit([](const auto& source) { return format_of_source(source); }, config);
}

std::vector<TextFormat> text_formats(const DataConfig& config) {
  std::vector<TextFormat> formats;
  const auto add = [&](const std::optional<TextFormat>& format) {
    if (format) formats.push_back(*format);
  };
  if (const auto* mixture = std::get_if<MixtureDataConfig>(&config)) {
    for (const MixedSourceConfig& mixed : mixture->sources) add(text_format(mixed.source));
  } else {
    add(text_format(config));
  }
  return formats;
}

Tokenizer tokenizer_of(const TextFormat& format) {
  if (!format.tokenizer) return Tokenizer::from_json(byte_tokenizer_json(), "bytes");
  check_tokenizer_file(*format.tokenizer);
  return Tokenizer::from_file(*format.tokenizer);
}

std::string tokenizer_name(const TextFormat& format) {
  return format.tokenizer ? cat("'", format.tokenizer->string(), "'") : "bytes";
}

void check_tokenizer_file(const std::filesystem::path& path) {
  std::error_code error;
  D9D_CHECK(
      !std::filesystem::is_directory(path, error), ConfigError,
      "[data::check_tokenizer_file] expected the file tokenizer.json for the key \"tokenizer\" of the data, got the "
      "folder '",
      path.string(), "'. Name the file in it.");
  D9D_CHECK(std::filesystem::exists(path, error), ConfigError,
            "[data::check_tokenizer_file] expected the file of the key \"tokenizer\" of the data, got '", path.string(),
            "', which does not exist. Check the path; names of the hub are not downloaded: hf download NAME "
            "tokenizer.json --local-dir FOLDER.");
}

std::shared_ptr<const TextEncoder> encoder_of(const TokenizationConfig& config) {
  if (!config.tokenizer) return std::make_shared<const ByteEncoder>();
  check_tokenizer_file(*config.tokenizer);
  const EncodeOptions options{.add_special_tokens = config.add_special_tokens};
  return std::make_shared<const TokenizerEncoder>(*config.tokenizer, options);
}

std::shared_ptr<const TextEncoder> encoder_of(const ColumnsConfig& columns) {
  std::shared_ptr<const TextEncoder> encoder;
  PairColumns pair{.has_prompt = columns.pairs && columns.pairs->prompt_column,
                   .has_tools = columns.tools_column.has_value()};
  if (columns.has_conversations()) {
    check_tokenizer_file(*columns.tokenization.tokenizer);
    pair.chat = chat_renderer(chat_options(columns));
    encoder = std::make_shared<const ChatEncoder>(*columns.tokenization.tokenizer, *pair.chat);
  } else {
    encoder = encoder_of(columns.tokenization);
  }
  return columns.pairs ? std::make_shared<const PairEncoder>(std::move(encoder), std::move(pair)) : encoder;
}

std::optional<std::string> end_token(const ChatRenderer& chat, const Tokenizer& tokenizer) {
  std::string end = chat.end_of_answer();
  return tokenizer.token_to_id(end) ? std::optional(std::move(end)) : std::nullopt;
}

}  // namespace d9d
