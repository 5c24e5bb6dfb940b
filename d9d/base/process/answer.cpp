#include "d9d/base/process/answer.h"

#include <algorithm>
#include <optional>

#include "d9d/base/check.h"

namespace d9d {

nlohmann::ordered_json answer_with(const char* key, LineProcess& process, std::chrono::milliseconds timeout,
                                   std::string& failure) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const std::optional<std::string> line = process.receive(std::max(left, std::chrono::milliseconds(0)));
    if (!line) {
      failure = process.has_ended() ? process.wait_for_end(timeout) : cat("no answer within ", timeout.count(), " ms");
      return nullptr;
    }
    const auto answer = nlohmann::ordered_json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (!answer.is_object()) continue;
    if (answer.contains(key)) return answer[key];
    for (const char* error : {"error", "failed"}) {
      if (answer.contains(error)) {
        failure = answer[error].get<std::string>();
        return nullptr;
      }
    }
  }
}

}  // namespace d9d
