#include "d9d/tokenizer/chat/jinja/jinja_template.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/process/answer.h"
#include "d9d/tokenizer/chat/jinja/script.h"

namespace d9d {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kForAnAnswer{60};

// A value of a request, on one line: within JSON texts line ends are white space.
std::string value_of(std::string_view json) {
  if (json.empty()) return "null";
  std::string line(json);
  std::ranges::replace_if(
      line, [](char c) { return c == '\n' || c == '\r'; }, ' ');
  return line;
}

std::string request_of(std::string_view messages, std::string_view tools, const ChatOptions& options, bool answers) {
  Json variables = {{"add_generation_prompt", options.add_generation_prompt}};
  if (!options.enable_thinking) variables["enable_thinking"] = false;
  return cat(R"({"messages": )", value_of(messages), R"(, "tools": )", value_of(tools), R"(, "options": )",
             variables.dump(), R"(, "with_answers": )", answers ? "true" : "false", "}");
}

// Looks at the template's code alone: comments may speak of the block.
bool has_generation_block(const std::string& text) {
  static constexpr std::string_view kBlock = "generation";
  for (std::size_t at = text.find('{'); at != std::string::npos; at = text.find('{', at + 1)) {
    if (text.compare(at, 2, "{#") == 0) at = text.find("#}", at);
    if (at == std::string::npos) return false;
    if (text.compare(at, 2, "{%") != 0) continue;
    std::size_t name = at + 2;
    if (name < text.size() && (text[name] == '-' || text[name] == '+')) ++name;
    while (name < text.size() && std::isspace(static_cast<unsigned char>(text[name])) != 0) ++name;
    if (text.compare(name, kBlock.size(), kBlock) == 0) return true;
  }
  return false;
}

Json template_request(const std::string& text) { return {{"text", text}, {"has_marks", has_generation_block(text)}}; }

std::string setup_request_of(const JinjaSource& source) {
  Json variables = source.variables;
  if (!source.options.empty()) variables.update(Json::parse(source.options));
  return Json{{"template", template_request(source.text)},
              {"template_with_tools", source.text_with_tools ? template_request(*source.text_with_tools) : Json()},
              {"variables", std::move(variables)}}
      .dump();
}

}  // namespace

JinjaTemplate::JinjaTemplate(JinjaSource source)
    : source_(std::move(source)), marks_answers_(has_generation_block(source_.text)) {}

std::unique_ptr<LineProcess> JinjaTemplate::take_process() const {
  {
    const std::scoped_lock lock(mutex_);
    if (!idle_.empty()) {
      auto process = std::move(idle_.back());
      idle_.pop_back();
      return process;
    }
  }
  const std::string python = source_.python.value_or(D9D_PYTHON);
  const auto process_without = [&](const std::string& failure) {
    return IoError(
        cat("[tokenizer::chat] expected a Python with the package jinja2, 3.1.6 or later, to render the chat "
            "template of '",
            source_.place, "', got ", python, ": ", failure,
            ". Name another interpreter in the key \"python\" of the data, or a family as chat_template."));
  };
  std::unique_ptr<LineProcess> process;
  try {
    process = std::make_unique<LineProcess>(python_command(python));
  } catch (const IoError& error) {
    throw process_without(error.what());
  }
  process->send(Json(render_script()).dump());
  process->send(setup_request_of(source_));
  std::string failure;
  if (answer_with("ready", *process, kForAnAnswer, failure).is_null()) {
    if (process->has_ended()) throw process_without(failure);
    throw IoError(cat("[tokenizer::chat] expected a chat template in '", source_.place,
                      "', got one with an error: ", failure, ". Correct it, or name another as chat_template."));
  }
  return process;
}

void JinjaTemplate::give_back(std::unique_ptr<LineProcess> process) const {
  const std::scoped_lock lock(mutex_);
  idle_.push_back(std::move(process));
}

RenderedChat JinjaTemplate::render(std::string_view messages, std::string_view tools, const ChatOptions& options,
                                   bool answers) const {
  std::unique_ptr<LineProcess> process = take_process();
  process->send(request_of(messages, tools, options, answers));
  const std::optional<std::string> line = process->receive(kForAnAnswer);
  D9D_CHECK(
      line, IoError, "[tokenizer::chat] expected the chat template of '", source_.place,
      "' to render a conversation, got ",
      process->has_ended() ? process->wait_for_end(kForAnAnswer) : cat("no text within ", kForAnAnswer.count(), " s"),
      ". Look at the template and at ", messages.substr(0, 200), ".");
  const Json answer = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
  D9D_CHECK(answer.is_object(), IoError,
            "[tokenizer::chat] expected JSON from the Python that renders the chat template of '", source_.place,
            "', got '", line->substr(0, 100), "'. Let that Python print nothing of its own.");
  give_back(std::move(process));
  D9D_CHECK(!answer.contains("problem"), ConfigError, answer.value("problem", ""), ", says the chat template of '",
            source_.place, "'");
  RenderedChat chat{.text = answer["text"], .assistant = {}};
  if (!answers) return chat;
  for (const Json& range : answer["answers"]) chat.assistant.push_back({.begin = range[0], .end = range[1]});
  return chat;
}

}  // namespace d9d
