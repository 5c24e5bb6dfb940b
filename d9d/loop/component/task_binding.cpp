#include "d9d/loop/component/task_binding.h"

#include "d9d/base/check.h"

namespace d9d {

TaskBinding::~TaskBinding() = default;

void check_built(bool is_built, const char* function, const char* what) {
  D9D_CHECK(is_built, StateError, "[loop::trainer] expected ", function, " to return ", what, ", got null.");
}

}  // namespace d9d
