#include "d9d/loop/step/microbatch.h"

namespace d9d {

AnyModelStage::~AnyModelStage() = default;

AnyMicrobatch::~AnyMicrobatch() = default;

TensorRefs AnyMicrobatch::tensors() {
  TensorRefs tensors;
  add_input_tensors(tensors);
  add_state_tensors(tensors);
  detail::add_tensor_refs(loss_scales, tensors);
  return tensors;
}

TensorRefs AnyMicrobatch::state_tensors() {
  TensorRefs tensors;
  add_state_tensors(tensors);
  return tensors;
}

void AnyMicrobatch::detach_tensors() {
  for (at::Tensor& leaf : tensors()) {
    if (leaf.defined() && leaf.requires_grad()) leaf = leaf.detach();
  }
}

void AnyMicrobatch::write_key(detail::GraphKeyWriter& key) const {
  write_values(key);
  key.write(loss_scales);
}

}  // namespace d9d
