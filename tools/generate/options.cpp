#include "tools/generate/options.h"

#include <algorithm>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/load_config.h"

namespace d9d::generate_tool {
namespace {

constexpr std::string_view kHelp =
    R"(Generates text with a model in the format of Hugging Face, such as one that a job has exported.

  d9d_generate MODEL [TEXT...] [--flag value | --flag=value]...

MODEL is a folder with config.json, weights and tokenizer.json; without a tokenizer.json tokens are bytes. Each TEXT is
continued. All prompts of a batch are generated together. Text ends at the model's end tokens.

  --chat                 each TEXT is what a user says; the model answers
  --prompts FILE.jsonl   further prompts, one a line: {"prompt": TEXT}, {"messages": [...]} or {"ids": [...]}
  --num-tokens N         at most; default: 100
  --temperature T        0, the default: always the likeliest token
  --top-k K              draws from the K likeliest tokens
  --top-p P              draws from the likeliest tokens of together probability P
  --seed N               of the draws
  --stop TOKEN           a token, by its text, after which text ends, too; may be repeated
  --batch N              prompts at a time; default: 16
  --dtype DTYPE          float32, bfloat16, ...; default: float32 on a CPU, bfloat16 on a GPU
  --device cpu|cuda      default: a GPU if there is one
  --chat-template NAME|FILE   a family, or a file with a Jinja template; default: the template beside the tokenizer
  --chat-template-kwargs JSON   further variables of the template: '{"enable_thinking": false}'
  --python FILE          with the package jinja2, for templates of no family
  --json                 a line {"text", "ids", "log_probs"} a prompt
)";
constexpr const char* kSeeHelp = ". See --help.";

const std::set<std::string> kNumbers = {"num_tokens", "temperature", "top_k", "top_p", "seed", "batch"};
const std::set<std::string> kLists = {"stop"};
const std::set<std::string> kSwitches = {"chat", "json"};
const std::set<std::string> kTexts = {"prompts", "dtype", "device", "chat_template", "chat_template_kwargs", "python"};

Json number_of(const std::string& text, const std::string& flag) {
  const Json number = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(number.is_number(), UsageError, "[generate] expected a number behind ", flag, ", got '", text, "'",
            kSeeHelp);
  return number;
}

// The flag at `arguments[i]` as a key; returns how many arguments it took.
std::size_t add_flag(const std::vector<std::string>& arguments, std::size_t i, Json& keys) {
  const std::string& argument = arguments[i];
  const std::size_t equals = argument.find('=');
  const std::string flag = argument.substr(0, equals);
  std::string key = flag.substr(2);
  std::ranges::replace(key, '-', '_');
  const bool is_known =
      kNumbers.contains(key) || kLists.contains(key) || kSwitches.contains(key) || kTexts.contains(key);
  D9D_CHECK(is_known && flag.find('_') == std::string::npos, UsageError, "[generate] expected a flag, got '", flag, "'",
            kSeeHelp);
  D9D_CHECK(!keys.contains(key) || kLists.contains(key), UsageError, "[generate] expected ", flag,
            " once, got it twice", kSeeHelp);
  if (kSwitches.contains(key)) {
    D9D_CHECK(equals == std::string::npos, UsageError, "[generate] expected ", flag, " without a value, got '",
              argument, "'", kSeeHelp);
    keys[key] = true;
    return 1;
  }
  D9D_CHECK(equals != std::string::npos || i + 1 < arguments.size(), UsageError, "[generate] expected a value behind ",
            flag, ", got none", kSeeHelp);
  const std::string value = equals == std::string::npos ? arguments[i + 1] : argument.substr(equals + 1);
  if (kLists.contains(key)) {
    keys[key].push_back(value);
  } else {
    keys[key] = kNumbers.contains(key) ? number_of(value, flag) : Json(value);
  }
  return equals == std::string::npos ? 2 : 1;
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (std::ranges::find(arguments, "--help") != arguments.end()) throw HelpRequested(std::string(kHelp));
  Json keys = Json::object();
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < arguments.size();) {
    if (arguments[i].starts_with("--")) {
      i += add_flag(arguments, i, keys);
    } else {
      texts.push_back(arguments[i++]);
    }
  }
  D9D_CHECK(!texts.empty(), UsageError, "[generate] expected MODEL, got none", kSeeHelp);
  keys["model"] = texts.front();
  texts.erase(texts.begin());
  D9D_CHECK(!texts.empty() || keys.contains("prompts"), UsageError,
            "[generate] expected a TEXT behind MODEL, or --prompts, got neither", kSeeHelp);
  keys["prompt"] = texts;
  return parse_record<Options>(keys, ConfigPath{.source = "command line"});
}

}  // namespace d9d::generate_tool
