#include "d9d/tracker/helper/helper_program.h"

#include <chrono>

#include "d9d/base/check.h"
#include "d9d/base/process/answer.h"
#include "d9d/tracker/helper/script.h"

namespace d9d {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::chrono::seconds kForStarting{60};

// What ended the start as a part of a sentence: texts of errors are sentences.
std::string without_period(std::string text) {
  while (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

std::unique_ptr<LineProcess> HelperProgram::start() const {
  std::string failure;
  try {
    auto process = std::make_unique<LineProcess>(python_command(python));
    process->send(Json(helper_script()).dump());
    process->send(Json{{"start", {{"provider", provider}, {"config", config}}}}.dump());
    if (!answer_with("ready", *process, kForStarting, failure).is_null()) return process;
  } catch (const IoError& error) {
    failure = error.what();
  }
  throw ConfigError(cat("[tracker::", provider, "] expected a Python that has the package '", provider, "', got ",
                        python, ": ", without_period(failure),
                        ". Run `make trackers` in d9d's source folder, or name another interpreter in the ",
                        "tracker's key 'python'."));
}

Json HelperProgram::open(LineProcess& process, const Json& request) const {
  process.send(Json{{"open", request}}.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::string failure;
  Json opened = answer_with("opened", process, for_opening, failure);
  D9D_CHECK(!opened.is_null(), IoError, "[tracker::", provider, "] expected to open the run ", request["name"],
            ", got ", without_period(failure), ". Correct the tracker's keys.");
  return opened;
}

}  // namespace d9d
