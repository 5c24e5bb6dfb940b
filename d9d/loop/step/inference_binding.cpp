#include "d9d/loop/step/inference_binding.h"

namespace d9d {

InferenceBinding::~InferenceBinding() = default;

}  // namespace d9d
