// The initial values of a whole model as one number, as configurations of published models have it.
//
// Example
//   auto model = make_module<MyModel>(config);
//   set_normal_init(*model, /*std=*/0.02);                        // initializer_range of transformers
//   model->gate->weight->set_init(init::zeros());                 // one parameter, after the call for all
//   ...                                                           // parallelise, materialize, reset_parameters
#pragma once

#include "d9d/modules/module.h"

namespace d9d {

// Local, before reset_parameters(). Draws every parameter below that has two or more dims (linear layers, embeddings,
// experts, routers) from N(0, std^2); parameters with one dim (norms, biases, sinks) keep their initializers. Throws
// ConfigError unless std >= 0.
void set_normal_init(Module& module, double std);

}  // namespace d9d
