// Generates text with a model in the format of Hugging Face.
//
//   d9d_generate runs/finetune/full/export --chat 'What is a tensor?' --temperature 0.7
//   d9d_generate --help
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/interrupt.h"
#include "d9d/base/io/input_file.h"
#include "d9d/core/dtype/scalar_type.h"
#include "d9d/core/error/error_place.h"
#include "d9d/core/launch/launch.h"
#include "d9d/data/build/text_format.h"
#include "d9d/models/decoder/generate.h"
#include "d9d/models/load_decoder.h"
#include "d9d/tokenizer/chat/chat_renderer.h"
#include "d9d/tokenizer/chat/encode_chat.h"

#include "tools/generate/options.h"

namespace {

using d9d::generate_tool::Options;
using Ids = std::vector<std::int64_t>;

// How prompts become tokens, and tokens text.
struct Format {
  d9d::Tokenizer tokenizer;
  bool has_bytes = false;
  std::optional<d9d::ChatRenderer> chat = {};  // needed by some prompt
};

Format format_of(const Options& options, bool needs_chat) {
  D9D_CHECK(std::filesystem::is_directory(options.model), d9d::IoError,
            "[generate] expected the folder of a model, got '", options.model.string(),
            "', which is none. Check the path.");
  const std::filesystem::path file = options.model / "tokenizer.json";
  const bool has_tokenizer = std::filesystem::exists(file);
  D9D_CHECK(has_tokenizer || !needs_chat, d9d::ConfigError, "[generate] expected the tokenizer of a chat, got no '",
            file.string(), "'. Put the model's tokenizer.json there.");
  Format format{.tokenizer = d9d::tokenizer_of({.tokenizer = has_tokenizer ? std::optional(file) : std::nullopt}),
                .has_bytes = !has_tokenizer};
  if (needs_chat)
    format.chat = d9d::chat_renderer({.tokenizer = file,
                                      .chat_template = options.chat_template,
                                      .template_kwargs = options.chat_template_kwargs.value_or(""),
                                      .python = options.python});
  return format;
}

struct Prompt {
  std::string place = {};  // in error messages
  std::string text = {};
  nlohmann::json messages = {};  // of a conversation
  Ids ids = {};                  // or tokens
};

bool are_ids(const nlohmann::json& json) {
  return json.is_array() && std::ranges::all_of(json, [](const auto& id) { return id.is_number_integer(); });
}

// nlohmann::json() without a value.
nlohmann::json value_of(const nlohmann::json& row, const char* key) {
  return row.is_object() ? row.value(key, nlohmann::json()) : nlohmann::json();
}

nlohmann::json said(const std::string& text) { return {{{"role", "user"}, {"content", text}}}; }

Prompt prompt_of(const std::string& line, const std::string& place, bool is_chat) {
  const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json ids = value_of(row, "ids"), messages = value_of(row, "messages"), text = value_of(row, "prompt");
  D9D_CHECK(!ids.is_null() ? are_ids(ids) : (!messages.is_null() ? messages.is_array() : text.is_string()),
            d9d::ConfigError, "[generate] expected {\"prompt\": text}, {\"messages\": [...]} or {\"ids\": [...]} ",
            place, ", got '", line, "'.");
  if (!ids.is_null()) return {.place = place, .ids = ids.get<Ids>()};
  if (!messages.is_null()) return {.place = place, .messages = messages};
  return {.place = place, .text = text, .messages = is_chat ? said(text) : nlohmann::json()};
}

std::vector<Prompt> read_prompts(const Options& options) {
  std::vector<Prompt> prompts;
  for (const std::string& text : options.prompt) {
    prompts.push_back({.place = d9d::cat("in TEXT ", prompts.size() + 1),
                       .text = text,
                       .messages = options.chat ? said(text) : nlohmann::json()});
  }
  if (!options.prompts) return prompts;
  std::istringstream lines(d9d::text_of_file(*options.prompts));
  std::int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    prompts.push_back(
        prompt_of(line, d9d::cat("in line ", number, " of '", options.prompts->string(), "'"), options.chat));
  }
  return prompts;
}

Ids encoded(const Prompt& prompt, const Format& format) {
  std::vector<std::uint32_t> ids;
  if (prompt.messages.is_null()) {
    ids = format.tokenizer.encode(prompt.text, {.add_special_tokens = !format.has_bytes}).ids;
  } else {
    ids = d9d::encode_chat(format.tokenizer,
                           format.chat->render(prompt.messages.dump(), /*tools=*/{}, {.add_generation_prompt = true}))
              .ids;
  }
  return {ids.begin(), ids.end()};
}

Ids ids_of(const Prompt& prompt, const Format& format) {
  return d9d::with_error_place(prompt.place, [&] {
    const Ids ids = prompt.ids.empty() ? encoded(prompt, format) : prompt.ids;
    D9D_CHECK(!ids.empty(), d9d::ConfigError, "[generate] expected a prompt of at least one token, got none.");
    return ids;
  });
}

// The ids after which text ends: those that the model's files name, the end of an answer, and those asked for.
Ids stop_ids(const Options& options, const Format& format) {
  std::set<std::int64_t> ids;
  for (const char* const name : {"generation_config.json", "config.json"}) {
    if (!std::filesystem::exists(options.model / name)) continue;
    const auto settings = nlohmann::json::parse(d9d::text_of_file(options.model / name), nullptr, false);
    nlohmann::json end = value_of(settings, "eos_token_id");
    if (end.is_number_integer()) end = nlohmann::json::array({end});
    D9D_CHECK(settings.is_object() && (end.is_null() || are_ids(end)), d9d::ConfigError,
              "[generate] expected a JSON object with an id, or a list of ids, as eos_token_id in '",
              (options.model / name).string(), "', got ", settings.is_object() ? end.dump() : "something else",
              ". Correct the file.");
    if (!end.is_null()) ids.merge(end.get<std::set<std::int64_t>>());
    if (!ids.empty()) break;
  }
  std::vector<std::string> tokens = options.stop;
  if (format.chat) {
    if (const auto end = d9d::end_token(*format.chat, format.tokenizer)) tokens.push_back(*end);
  }
  for (const std::string& token : tokens) {
    const auto id = format.tokenizer.token_to_id(token);
    D9D_CHECK(id, d9d::UsageError, "[generate] expected the text of a token behind --stop, got '", token,
              "', which is none. tokenizer.json has them.");
    ids.insert(*id);
  }
  return {ids.begin(), ids.end()};
}

void print(const Options& options, const Prompt& prompt, const d9d::GeneratedSequence& generated,
           const Format& format) {
  const std::vector<std::uint32_t> ids(generated.ids.begin(), generated.ids.end());
  const std::string text = format.tokenizer.decode(ids, {.skip_special_tokens = true});
  if (options.json) {
    const nlohmann::ordered_json row = {{"text", text}, {"ids", generated.ids}, {"log_probs", generated.log_probs}};
    std::cout << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  } else {
    if (options.prompt.size() + (options.prompts ? 2 : 0) > 1) std::cout << "--- " << prompt.text << "\n";
    std::cout << (prompt.messages.is_null() ? prompt.text : "") << text << std::endl;
  }
  D9D_CHECK(std::cout.good(), d9d::IoError, "[generate] expected to write to standard output, which failed (",
            std::generic_category().message(errno), ").");
}

void run(const Options& options, c10::Device device) {
  const std::vector<Prompt> prompts = read_prompts(options);
  const bool needs_chat = std::ranges::any_of(prompts, [](const Prompt& each) { return !each.messages.is_null(); });
  const Format format = format_of(options, needs_chat);
  const Ids stops = stop_ids(options, format);
  std::vector<Ids> ids;
  for (const Prompt& prompt : prompts) ids.push_back(ids_of(prompt, format));
  const d9d::Dtype dtype = options.dtype.value_or(device.is_cuda() ? d9d::Dtype::kBFloat16 : d9d::Dtype::kFloat32);
  const auto model = d9d::load_decoder(options.model, d9d::to_scalar_type(dtype), device);
  const d9d::InterruptScope interrupt;
  const auto stop_if_interrupted = [&](std::int64_t, std::int64_t) {
    D9D_CHECK(!interrupt.requested(), d9d::IoError, "[generate] interrupted.");
  };
  std::size_t num_tokens = 0;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t first = 0; first < prompts.size(); first += static_cast<std::size_t>(options.batch)) {
    const std::size_t end = std::min(prompts.size(), first + static_cast<std::size_t>(options.batch));
    const std::vector<Ids> batch(ids.begin() + static_cast<std::ptrdiff_t>(first),
                                 ids.begin() + static_cast<std::ptrdiff_t>(end));
    const auto results = d9d::generate_batch(model, batch,
                                             {.num_tokens = options.num_tokens,
                                              .temperature = options.temperature,
                                              .top_k = options.top_k,
                                              .top_p = options.top_p,
                                              .seed = static_cast<std::uint64_t>(options.seed),
                                              .first_sequence = static_cast<std::int64_t>(first),
                                              .stop_ids = stops,
                                              .on_token = stop_if_interrupted});
    for (std::size_t i = first; i < end; ++i) {
      print(options, prompts[i], results[i - first], format);
      num_tokens += results[i - first].ids.size();
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cerr << "generate: " << num_tokens << " tokens of " << prompts.size() << " prompts in " << seconds.count()
            << " s\n";
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  const int failed = d9d::run_reporting_errors([&] {
    const Options options = d9d::generate_tool::parse_options(argc, argv);
    code = d9d::launch({.device = options.device, .log_level = d9d::LogLevel::kWarning}, {},
                       [&](d9d::DistContext& context) { run(options, context.device()); });
  });
  return failed != 0 ? failed : code;
}
