#include "tools/convert/options.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "d9d/base/check.h"
#include "d9d/base/config/load_config.h"

namespace d9d::convert {
namespace {

constexpr std::string_view kHelp =
    R"(Converts a folder of safetensors: names, dtypes, formats of weights, sizes of files. Exports checkpoints of jobs.

  d9d_convert SOURCE TARGET [--flag value | --flag=value]...

SOURCE is a folder in the layout of the Hugging Face hub; TARGET becomes one. What a folder has beside its weights
(config.json, tokenizer, any other file) is copied. TARGET appears completely or not at all.

SOURCE may be a checkpoint of a training job, save_dir/save-<step>, or a save_dir, whose newest it means: TARGET becomes
the model as the job exports it, with its config.json. Data and optimiser are not read.

  --weights averaged|trained    of a checkpoint of a job with trainer.ema; default: those that the job exports
  --adapters merged|peft        of a checkpoint of a job that trains adapters: the model with them merged, or they alone
                                in the format of Hugging Face peft; default: as the job exports

Any model:
  --dtype NAME              float64, float32, bfloat16 or float16, for tensors of these types
  --rename 'REGEX=>TEXT'    in each name, what the regular expression matches becomes the text ($1: its first group);
                            may be repeated, in order, before everything else
  --files FOLDER            copies what FOLDER has beside weights, such as a tokenizer, too; config.json excepted
  --max-shard-size SIZE     of a file, such as 5GB, 512MiB or bytes; default 4GiB

Qwen3, dense and mixture of experts (after config.json of SOURCE):
  --to huggingface|d9d      names and formats of transformers or of this library; of its release 0.16 too
  --experts module_list|fused   with transformers' names: one matrix an expert, or one for all
  --qkv packed|separate     self_attn.qkv_proj instead of q_proj, k_proj and v_proj; or back
  --vocabulary a=ROWS,b=ROWS    the splits of the embedding and the head in d9d's names, in order; default: regular

  --workers N               threads; the bytes of TARGET are the same for any number
  --overwrite               TARGET may exist if it has nothing but such files
  --dry-run                 print what would be made of what, and what is missing or unused; exit code 1 if something is
                            missing. Needs no TARGET
)";

constexpr std::string_view kSwitches[] = {"overwrite", "dry_run"};
constexpr const char* kSeeHelp = ". See --help.";

std::string flag_of(const std::string& key) {
  std::string flag = "--" + key;
  std::ranges::replace(flag, '_', '-');
  return flag;
}

std::int64_t parse_count(std::string_view digits, const std::string& text, const char* what) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  D9D_CHECK(error == std::errc() && end == digits.data() + digits.size() && number > 0, UsageError,
            "[convert] expected ", what, ", got '", text, "'", kSeeHelp);
  return number;
}

// Adds the flag, or SOURCE or TARGET, at `arguments[i]`; returns how many were used.
std::size_t add(const std::vector<std::string>& arguments, std::size_t i, Json& options) {
  const std::string& argument = arguments[i];
  if (!argument.starts_with("--")) {
    const char* const place = options.contains("source") ? "target" : "source";
    D9D_CHECK(!options.contains(place), UsageError, "[convert] expected SOURCE and TARGET, got '", argument, "' too",
              kSeeHelp);
    options[place] = argument;
    return 1;
  }
  const std::size_t equals = argument.find('=');
  std::string key = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
  std::ranges::replace(key, '-', '_');
  const auto keys = record_type<Options>().keys();
  D9D_CHECK(std::ranges::find(keys, key) != keys.end() && key != "source" && key != "target", UsageError,
            "[convert] expected a flag, got '", argument, "'", kSeeHelp);
  if (std::ranges::find(kSwitches, key) != std::end(kSwitches)) {
    D9D_CHECK(equals == std::string::npos, UsageError, "[convert] expected ", flag_of(key), " without a value, got '",
              argument, "'", kSeeHelp);
    options[key] = true;
    return 1;
  }
  D9D_CHECK(equals != std::string::npos || i + 1 < arguments.size(), UsageError, "[convert] expected a value behind ",
            argument, ", got none", kSeeHelp);
  const std::string value = equals == std::string::npos ? arguments[i + 1] : argument.substr(equals + 1);
  if (key == "rename") {
    options[key].push_back(value);
  } else {
    D9D_CHECK(!options.contains(key), UsageError, "[convert] expected ", flag_of(key), " once, got it twice", kSeeHelp);
    if (key == "workers") {
      options[key] = parse_count(value, value, "a number of workers");
    } else {
      options[key] = value;
    }
  }
  return equals == std::string::npos ? 2 : 1;
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (std::ranges::find(arguments, "--help") != arguments.end()) throw HelpRequested(std::string(kHelp));
  Json json = Json::object();
  for (std::size_t i = 0; i < arguments.size();) i += add(arguments, i, json);
  const auto options = parse_record<Options>(json, ConfigPath{.source = "command line"});
  D9D_CHECK(!options.source.empty() && (!options.target.empty() || options.dry_run), UsageError,
            "[convert] expected SOURCE and TARGET, got ", options.source.empty() ? "neither" : "no TARGET", kSeeHelp);
  (void)parse_bytes(options.max_shard_size);
  return options;
}

std::int64_t parse_bytes(const std::string& text) {
  constexpr std::pair<std::string_view, std::int64_t> kUnits[] = {
      {"KiB", 1LL << 10}, {"MiB", 1LL << 20}, {"GiB", 1LL << 30}, {"KB", 1000}, {"MB", 1000000}, {"GB", 1000000000}};
  std::string_view digits = text;
  std::int64_t unit = 1;
  for (const auto& [name, bytes] : kUnits) {
    if (!digits.ends_with(name)) continue;
    digits.remove_suffix(name.size());
    unit = bytes;
    break;
  }
  const std::int64_t number = parse_count(digits, text, "a size such as 5GB or 512MiB");
  D9D_CHECK(number <= std::numeric_limits<std::int64_t>::max() / unit, UsageError,
            "[convert] expected a size of fewer bytes, got '", text, "'", kSeeHelp);
  return number * unit;
}

std::vector<std::pair<std::string, std::int64_t>> parse_vocabulary(const std::string& text) {
  std::vector<std::pair<std::string, std::int64_t>> splits;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string split = text.substr(begin, end - begin);
    const std::size_t equals = split.find('=');
    D9D_CHECK(equals != std::string::npos && equals > 0, UsageError,
              "[convert] expected splits such as regular=151643,special=293, got '", text, "'", kSeeHelp);
    splits.emplace_back(split.substr(0, equals), parse_count(std::string_view(split).substr(equals + 1), text,
                                                             "splits such as regular=151643,special=293"));
    begin = end + 1;
  }
  return splits;
}

std::pair<std::string, std::string> parse_rename(const std::string& text) {
  const std::size_t arrow = text.find("=>");
  D9D_CHECK(arrow != std::string::npos && arrow > 0, UsageError, "[convert] expected --rename 'REGEX=>TEXT', got '",
            text, "'", kSeeHelp);
  return {text.substr(0, arrow), text.substr(arrow + 2)};
}

}  // namespace d9d::convert
