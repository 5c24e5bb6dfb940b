#include "d9d/metrics/classification/class_results.h"

#include "d9d/base/check.h"

namespace d9d {

std::vector<std::string> detail::result_names(std::int64_t num_classes, Average average,
                                              const std::vector<std::string>& class_names) {
  D9D_CHECK(class_names.empty() || std::ssize(class_names) == num_classes, StateError, "[metrics] expected ",
            num_classes, " names of classes, got ", class_names.size(), ". Name each class, or none.");
  if (average != Average::kPerClass) return {""};
  if (!class_names.empty()) return class_names;
  std::vector<std::string> numbers;
  for (std::int64_t i = 0; i < num_classes; ++i) numbers.push_back(std::to_string(i));
  return numbers;
}

}  // namespace d9d
