#include "d9d/tracker/tensorboard/run_markdown.h"

namespace d9d {
namespace {

// Escapes bars and line ends, which would end a cell of a table.
std::string cell(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '|')
      escaped += "\\|";
    else if (c == '\n')
      escaped += "<br>";
    else
      escaped += c;
  }
  return escaped;
}

void append_rows(std::string& table, const std::string& path, const nlohmann::ordered_json& value) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, child] : value.items()) append_rows(table, path.empty() ? key : path + '/' + key, child);
    return;
  }
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  table += "| " + cell(path) + " | " + cell(text) + " |\n";
}

}  // namespace

std::string run_markdown(const RunInfo& info) {
  std::string text = "# " + info.name + "\n\n";
  if (!info.description.empty()) text += info.description + "\n\n";
  if (info.hparams.empty()) return text;
  text += "| hyper-parameter | value |\n|---|---|\n";
  append_rows(text, "", info.hparams);
  return text;
}

}  // namespace d9d
