// Sizes of a dense Qwen3 decoder.
#pragma once

#include "d9d/models/decoder/dense_parameters.h"

namespace d9d {

using Qwen3DenseLayerParameters = DenseLayerParameters;
using Qwen3DenseParameters = DenseParameters;

}  // namespace d9d
