// Mixed precision: trained parameters are stored, updated and saved in a wide dtype (master weights). Layers compute
// with copies in a narrow dtype, which are rounded once a step.
//
// Example
//   auto model = make_module<MyModel>(config);
//   model->to(at::kBFloat16);                      // layers compute in bfloat16
//   keep_parameters_in(model.shared(), at::kFloat);   // the optimiser updates float32
//   ...                                            // parallelise, materialize, train
//
// Gradients are computed in the narrow dtype and are summed over microbatches and ranks in
// GradientManagerConfig::grad_dtype (float32 by default). Under FSDP each rank keeps a wide slice and a narrow one, and
// the narrow ones are gathered.
#pragma once

#include <memory>

#include "d9d/modules/module.h"

namespace d9d {

// Local, on the meta device, before parallelize_*(). stored() of every trained parameter below gets `dtype`; frozen
// parameters keep theirs. Values are rounded to the layers' dtype when a step's first microbatch begins
// (GradientReduction::begin_pass), and before each forward of `model` outside of a step. Forwards of modules
// below `model` outside of a step use the values of the last such rounding: call round_parameters() before them.
// Throws ConfigError for a dtype that cannot hold the values of the layers' dtype.
void keep_parameters_in(const std::shared_ptr<Module>& model, at::ScalarType dtype);

// Rounds the parameters of `model` as its forward does. Local. Within a step, and for a model whose parameters are
// not kept in another dtype, it does nothing.
void round_parameters(Module& model);

}  // namespace d9d
