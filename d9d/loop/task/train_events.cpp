#include "d9d/loop/task/train_events.h"

#include "d9d/base/check.h"

namespace d9d {

double FinishedEvaluation::value(const std::string& name) const {
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  std::string names;
  for (const auto& [each, number] : values) names += cat(names.empty() ? "" : ", ", each);
  throw StateError(cat("[loop::evaluation] expected a value of the evaluation set '", set, "' among {", names,
                       "}, got '", name, "'. Name one of these."));
}

}  // namespace d9d
