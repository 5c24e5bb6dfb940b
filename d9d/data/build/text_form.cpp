#include "d9d/data/build/text_form.h"

#include <system_error>

#include "d9d/base/check.h"
#include "d9d/tokenizer/chat/find_chat_family.h"

namespace d9d {

namespace {

TextForm form_of(const TokenizationConfig& config) {
  return {.tokenizer = config.tokenizer,
          .add_special_tokens = config.add_special_tokens,
          .end_of_document = config.end_of_document};
}

std::optional<TextForm> form_of_source(const TextSource& source) { return form_of(source.tokenization); }
std::optional<TextForm> form_of_source(const TokensSource&) { return std::nullopt; }
std::optional<TextForm> form_of_source(const MegatronSource&) { return std::nullopt; }
template <class Source>
requires requires(const Source& source) { source.columns; }
std::optional<TextForm> form_of_source(const Source& source) {
  TextForm form = form_of(source.columns.tokenization);
  if (source.columns.messages_column) form.chat = chat_family(source.columns);
  return form;
}

template <class Source>
std::optional<TextForm> form_of_data(const DataOf<Source>& data) {
  return form_of_source(data.source);
}

std::optional<TextForm> form_of_data(const MixtureDataConfig& data) {
  std::optional<TextForm> common;
  for (const MixedSourceConfig& mixed : data.sources) {
    const auto form = std::visit([](const auto& source) { return form_of_source(source); }, mixed.source);
    if (!form || (common && *common != *form)) return std::nullopt;
    common = form;
  }
  return common;
}

std::optional<TextForm> form_of_data(const DatasetDataConfig& data) {
  return TextForm{.tokenizer = data.tokenizer, .add_special_tokens = true};
}

}  // namespace

std::optional<TextForm> text_form(const DataConfig& config) {
  return std::visit([](const auto& data) { return form_of_data(data); }, config);
}

std::optional<TextForm> text_form(const SourceConfig& config) {
  return std::visit([](const auto& source) { return form_of_source(source); }, config);
}

std::vector<TextForm> text_forms(const DataConfig& config) {
  std::vector<TextForm> forms;
  const auto add = [&](const std::optional<TextForm>& form) {
    if (form) forms.push_back(*form);
  };
  if (const auto* mixture = std::get_if<MixtureDataConfig>(&config)) {
    for (const MixedSourceConfig& mixed : mixture->sources) add(text_form(mixed.source));
  } else {
    add(text_form(config));
  }
  return forms;
}

Tokenizer tokenizer_of(const TextForm& form) {
  if (!form.tokenizer) return Tokenizer::from_json(byte_tokenizer_json(), "bytes");
  check_tokenizer_file(*form.tokenizer);
  return Tokenizer::from_file(*form.tokenizer);
}

std::string tokenizer_name(const TextForm& form) {
  return form.tokenizer ? cat("'", form.tokenizer->string(), "'") : "bytes";
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

ChatFamily chat_family(const ColumnsConfig& conversations) {
  return conversations.chat_template ? *conversations.chat_template
                                     : chat_family_beside(*conversations.tokenization.tokenizer);
}

}  // namespace d9d
