#include "d9d/loop/language_model/model_tokenizer.h"

#include <algorithm>
#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/io/input_file.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/data/build/text_format.h"
#include "d9d/data/source/documents_identity.h"
#include "d9d/data/text/text_encoder.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Files = std::map<std::string, std::string>;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kTokenizerConfig = "tokenizer_config.json";
constexpr const char* kGenerationConfig = "generation_config.json";

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

json read_object(const fs::path& path) {
  json object = json::parse(text_of_file(path), nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(object.is_object(), ConfigError, "[loop::tokenizer_files] expected a JSON object in '", path.string(),
            "', got something else. Correct it, or move it away.");
  return object;
}

// Returns whether two files have equal contents.
bool have_equal_bytes(const fs::path& left, const fs::path& right) {
  std::error_code error;
  return fs::file_size(left, error) == fs::file_size(right, error) && text_of_file(left) == text_of_file(right);
}

// A tokenizer, with its name for messages.
struct KnownTokenizer {
  std::string name;
  TokenizerIdentity identity;
};

// Returns the tokenizer of the job that saved a checkpoint; none if that job trained on token ids.
std::optional<KnownTokenizer> tokenizer_at(const SavedCheckpoint& saved) {
  const json data = value_of(saved, "data");
  const json order = data.is_object() ? data.value("order", json()) : json();
  const json sources = order.is_object() ? order.value("data", json()) : json();
  for (const json& source : sources) {
    const TokenizerIdentity identity = documents_identity(source).tokenizer;
    if (!identity.all.empty()) return KnownTokenizer{.name = saved.folder().string(), .identity = identity};
  }
  return std::nullopt;
}

// Returns the tokenizer in a folder of weights; none if there is no tokenizer.json, or if it cannot be parsed, of which
// the main process warns.
std::optional<KnownTokenizer> tokenizer_in(const fs::path& folder, const DistContext& context) {
  const fs::path path = folder / kTokenizer;
  if (!is_file(path)) return std::nullopt;
  try {
    return KnownTokenizer{.name = cat("'", path.string(), "'"), .identity = identity_of_tokenizer(read_object(path))};
  } catch (const std::exception&) {
    if (context.is_main_process()) {
      context.log().warning("cannot compare the data's tokenizer with ", path.string(),
                            ", which is of a form that is not built: make sure that they give the same ids");
    }
    return std::nullopt;
  }
}

std::int64_t id_of(const std::string& token, const std::optional<Tokenizer>& tokenizer) {
  std::optional<std::int64_t> id;
  if (tokenizer) {
    id = tokenizer->token_to_id(token);
  } else {
    id = ByteEncoder().id_of(token);
  }
  D9D_CHECK(id, ConfigError, "[loop::tokenizer_files] expected a token of the data's tokenizer, got '", token,
            "'. Correct data.end_of_document, or name the tokenizer that has it.");
  return *id;
}

// The tokens that end texts and answers, in the order of the sources.
struct EndTokens {
  std::vector<std::string> texts;
  std::vector<std::int64_t> ids;
};

// chats: the renderer of each format that has one.
EndTokens ends_of(const std::vector<TextFormat>& formats, const std::vector<std::optional<ChatRenderer>>& chats,
                  const std::optional<Tokenizer>& tokenizer) {
  EndTokens ends;
  const auto add = [&](const std::string& token) {
    if (std::ranges::find(ends.texts, token) != ends.texts.end()) return;
    ends.texts.push_back(token);
    ends.ids.push_back(id_of(token, tokenizer));
  };
  for (std::size_t i = 0; i < formats.size(); ++i) {
    const std::optional<std::string> answer = chats[i] && tokenizer ? end_token(*chats[i], *tokenizer) : std::nullopt;
    if (answer) add(*answer);
    if (formats[i].end_of_document) add(*formats[i].end_of_document);
  }
  return ends;
}

// Returns a tokenizer_config.json for a tokenizer without one. Sets eos_token only to a token that is special in
// tokenizer.json, since transformers would add any other token a second time.
std::string made_tokenizer_config(const EndTokens& ends, const std::optional<Tokenizer>& tokenizer,
                                  std::int64_t max_positions) {
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"clean_up_tokenization_spaces", false}};
  if (max_positions > 0) config["model_max_length"] = max_positions;
  const bool is_special =
      tokenizer && !ends.ids.empty() && tokenizer->is_special(static_cast<std::uint32_t>(ends.ids[0]));
  if (is_special) config["eos_token"] = ends.texts.front();
  return config.dump(2) + "\n";
}

// Returns the text of a generation_config.json: the settings `published`, which may be an empty object, with the end
// tokens of the data before its own in eos_token_id, each id once. Sets pad_token_id if it is missing.
std::string generation_config(json published, const EndTokens& ends) {
  std::vector<std::int64_t> all = ends.ids;
  const json before = published.value("eos_token_id", json());
  for (const json& id : before.is_array() ? before : json::array({before})) {
    if (id.is_number_integer() && std::ranges::find(all, id.get<std::int64_t>()) == all.end()) {
      all.push_back(id.get<std::int64_t>());
    }
  }
  if (!all.empty()) published["eos_token_id"] = all.size() == 1 ? json(all.front()) : json(all);
  if (!all.empty() && !published.contains("pad_token_id")) published["pad_token_id"] = all.front();
  return published.dump(2) + "\n";
}

bool has_chat_template(const Files& files) {
  if (files.contains("chat_template.jinja") || files.contains("chat_template.json")) return true;
  const auto config = files.find(kTokenizerConfig);
  return config != files.end() && json::parse(config->second, nullptr, false).contains("chat_template");
}

// Adds the template of the data, if there is none.
void add_template(const ChatRenderer& chat, Files& files, const DistContext& context) {
  if (has_chat_template(files)) return;
  if (chat.jinja() != nullptr) {
    files["chat_template.jinja"] = chat.jinja()->source().text;
  } else if (context.is_main_process()) {
    context.log().warning("exports have no chat template: none lies beside the tokenizer. The data is written as ",
                          chat.name());
  }
}

// Does the work of check_tokenizer() for one source of the data.
void check_tokenizer_of(const TextFormat& format, const fs::path& source, const DistContext& context) {
  if (format.tokenizer) check_tokenizer_file(*format.tokenizer);
  if (format.tokenizer && is_file(source / kTokenizer) && have_equal_bytes(*format.tokenizer, source / kTokenizer))
    return;
  const auto saved = checkpoint_at(source);
  const auto theirs = saved ? tokenizer_at(*saved) : tokenizer_in(source, context);
  if (!theirs) return;
  const TokenizerIdentity ours = tokenizer_of(format).identity();
  D9D_CHECK(ours.vocabulary == theirs->identity.vocabulary, ConfigError,
            "[loop::check_tokenizer] expected the data's tokenizer to give the ids that the model of "
            "trainer.model_stage_factory.source_checkpoint = '",
            source.string(), "' knows, got ", tokenizer_name(format),
            ", whose ids stand for other texts than those of ", theirs->name,
            ". Use that tokenizer; to train with other ids anyway, start without it",
            saved ? "." : ": move the file away.");
  if (ours != theirs->identity && context.is_main_process()) {
    context.log().warning("the tokenizer of the data, ", tokenizer_name(format), ", has the vocabulary of ",
                          theirs->name, ", and other added tokens, merges or rules");
  }
}

// Returns the first format of conversations, since its tokenizer has the tokens that end an answer; without
// conversations, the first format. The tokenizers of all formats have the same ids.
const TextFormat& format_of_export(const std::vector<TextFormat>& formats) {
  const auto chat = std::ranges::find_if(formats, [](const TextFormat& format) { return format.chat.has_value(); });
  return chat == formats.end() ? formats.front() : *chat;
}

}  // namespace

void check_tokenizer(const DistContext& context, const DataConfig& data, const fs::path& source) {
  std::set<std::string> known;
  for (const TextFormat& format : text_formats(data)) {
    if (known.insert(tokenizer_name(format)).second) check_tokenizer_of(format, source, context);
  }
}

Files tokenizer_files(const DistContext& context, const DataConfig& data, const TokenizerFilesOptions& options) {
  const std::vector<TextFormat> formats = text_formats(data);
  const auto& source = options.source_checkpoint;
  const bool has_source = source && is_file(*source / kTokenizer);
  std::optional<fs::path> path = has_source ? *source / kTokenizer : options.tokenizer;
  if (!formats.empty()) path = format_of_export(formats).tokenizer;
  if (!path && formats.empty()) return {};
  if (!formats.empty() && path) check_tokenizer_file(*path);

  std::vector<fs::path> folders;  // folders with files that belong to the tokenizer
  if (path) folders.push_back(path->parent_path());
  if (path && has_source && have_equal_bytes(*path, *source / kTokenizer)) folders.push_back(*source);
  Files files = {{kTokenizer, path ? text_of_file(*path) : byte_tokenizer_json()}};
  for (const std::string name : {kTokenizerConfig, "special_tokens_map.json", "added_tokens.json",
                                 "chat_template.jinja", "chat_template.json"}) {
    for (const fs::path& folder : folders) {
      if (!files.contains(name) && is_file(folder / name)) files[name] = text_of_file(folder / name);
    }
  }
  const std::optional<Tokenizer> tokenizer =
      path ? std::optional(Tokenizer::from_json(files[kTokenizer], path->string())) : std::nullopt;
  std::vector<std::optional<ChatRenderer>> chats;
  for (const TextFormat& format : formats) {
    chats.push_back(format.chat ? std::optional(chat_renderer(*format.chat)) : std::nullopt);
  }
  const EndTokens ends = ends_of(formats, chats, tokenizer);
  if (!files.contains(kTokenizerConfig)) {
    files[kTokenizerConfig] = made_tokenizer_config(ends, tokenizer, options.max_positions);
  }
  if (source) folders.insert(folders.begin(), *source);  // at the front, since generation settings belong to the model
  const auto published =
      std::ranges::find_if(folders, [](const auto& folder) { return is_file(folder / kGenerationConfig); });
  const std::string generation = generation_config(
      published == folders.end() ? json::object() : read_object(*published / kGenerationConfig), ends);
  if (generation != "{}\n") files[kGenerationConfig] = generation;
  for (const auto& chat : chats) {
    if (chat) add_template(*chat, files, context);
  }
  return files;
}

}  // namespace d9d
