#include "tools/tokenize/options.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/json_text.h"
#include "d9d/base/config/load_config.h"
#include "d9d/base/config/record_json.h"

namespace d9d::tokenize {
namespace {

constexpr std::string_view kHelp =
    R"(Tokenises text into a file of token ids, for data of kind "tokens".

  d9d_tokenize TARGET SOURCE... --tokenizer FILE [--flag value | --flag=value]...

TARGET becomes a folder: tokens.bin (ids, little-endian), offsets.bin (documents) and manifest.json. It appears completely
or not at all. SOURCE is a file or a glob in quotes: .txt (a document), .jsonl, .json, .parquet or .arrow (a document a row),
or a folder of Hugging Face datasets; all of one kind.

  --tokenizer FILE          tokenizer.json
  --end-of-document TOKEN   a token, by its text, after each document: '<|endoftext|>'
  --add-special-tokens      those of the tokenizer's template, such as one in front
  --column NAME             of rows; default: text
  --prompt-column NAME      of a text before it, which is not learned
  --messages-column NAME    of conversations, in which what the assistant says is learned; instead of both
  --tools-column NAME       of their tools
  --chat-template NAME|FILE a family, or a file with a Jinja template; default: the template beside the tokenizer
  --chat-template-kwargs JSON   variables of the template: '{"enable_thinking": false}'
  --python FILE             with the package jinja2, for templates of no family
  --show N                  prints the first N documents, what is learned between ⟦ and ⟧
  --split NAME              of folders; default: train
  --bad-rows refuse|skip    rows that are no text; default: refuse
  --num-proc N              threads; the file is the same for any number
  --kind text|jsonl|parquet|arrow   of SOURCE, where its name does not say it
)";
constexpr const char* kSeeHelp = ". See --help.";
constexpr std::string_view kFlags[] = {"tokenizer",
                                       "end_of_document",
                                       "add_special_tokens",
                                       "column",
                                       "prompt_column",
                                       "messages_column",
                                       "tools_column",
                                       "chat_template",
                                       "chat_template_kwargs",
                                       "python",
                                       "show",
                                       "split",
                                       "bad_rows",
                                       "num_proc",
                                       "kind"};

std::string flag_of(std::string key) {
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

std::int64_t number_of(const std::string& text, const std::string& flag) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  D9D_CHECK(error == std::errc() && end == text.data() + text.size(), UsageError,
            "[tokenize] expected a number behind ", flag, ", got '", text, "'", kSeeHelp);
  return number;
}

std::string kind_of(const std::filesystem::path& source) {
  static const std::map<std::string, const char*> kinds = {
      {".txt", "text"}, {".jsonl", "jsonl"}, {".json", "jsonl"}, {".parquet", "parquet"}, {".arrow", "arrow"}};
  const auto found = kinds.find(source.extension());
  if (found != kinds.end()) return found->second;
  static const std::set<std::string> packed = {".gz", ".zst", ".xz", ".bz2", ".lz4", ".zip", ".tar", ".tgz"};
  D9D_CHECK(!packed.contains(source.extension()), UsageError, "[tokenize] expected files of text, got '",
            source.string(), "', which is compressed as its name says. Unpack it.");
  D9D_CHECK(std::filesystem::is_directory(source), UsageError,
            "[tokenize] expected files whose names say their kind, got '", source.string(), "'. Add --kind.");
  return "arrow";
}

// The flag at `arguments[i]` as a key of the source; returns how many arguments it took.
std::size_t add_flag(const std::vector<std::string>& arguments, std::size_t i, Json& source) {
  const std::string& argument = arguments[i];
  const std::size_t equals = argument.find('=');
  const std::string flag = argument.substr(0, equals);
  std::string key = flag.substr(2);
  std::ranges::replace(key, '-', '_');
  D9D_CHECK(std::ranges::find(kFlags, key) != std::end(kFlags) && flag == flag_of(key), UsageError,
            "[tokenize] expected a flag, got '", flag, "'", kSeeHelp);
  D9D_CHECK(!source.contains(key), UsageError, "[tokenize] expected ", flag, " once, got it twice", kSeeHelp);
  if (key == "add_special_tokens") {
    D9D_CHECK(equals == std::string::npos, UsageError, "[tokenize] expected ", flag, " without a value, got '",
              argument, "'", kSeeHelp);
    source[key] = true;
    return 1;
  }
  D9D_CHECK(equals != std::string::npos || i + 1 < arguments.size(), UsageError, "[tokenize] expected a value behind ",
            flag, ", got none", kSeeHelp);
  const std::string value = equals == std::string::npos ? arguments[i + 1] : argument.substr(equals + 1);
  if (key == "num_proc" || key == "show") {
    source[key] = number_of(value, flag);
  } else if (key == "chat_template_kwargs") {
    source[key] = parse_json_text(value, flag);
  } else {
    source[key] = value;
  }
  return equals == std::string::npos ? 2 : 1;
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (std::ranges::find(arguments, "--help") != arguments.end()) throw HelpRequested(std::string(kHelp));
  Json source = Json::object();
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < arguments.size();) {
    if (arguments[i].starts_with("--")) {
      i += add_flag(arguments, i, source);
    } else {
      paths.push_back(arguments[i++]);
    }
  }
  D9D_CHECK(paths.size() >= 2, UsageError, "[tokenize] expected TARGET and SOURCE, got ",
            paths.empty() ? "neither" : cat("only '", paths.front(), "'"), kSeeHelp);
  D9D_CHECK(source.contains("tokenizer"), UsageError, "[tokenize] expected --tokenizer, got none", kSeeHelp);
  Options options{.target = paths.front()};
  if (source.contains("show")) options.num_shown = source["show"];
  source.erase("show");
  paths.erase(paths.begin());
  if (!source.contains("kind")) source["kind"] = kind_of(paths.front());
  source["paths"] = paths;
  source["sequence_length"] = 1;  // of samples, which are not made here
  options.source = parse_record<SourceConfig>(source, ConfigPath{.source = "command line"});
  return options;
}

}  // namespace d9d::tokenize
