// One microbatch from its inputs to its loss: AnyMicrobatch hides the types of its task, so that what runs microbatches
// is compiled once for all tasks.
//
// Example
//   Microbatch<MyTypes> microbatch(std::move(input), std::move(shared), std::move(state));
//   for (at::Tensor& leaf : microbatch.tensors()) leaf = leaf.to(device);
#pragma once

#include <memory>
#include <utility>

#include "d9d/loop/graphs/graph_key.h"
#include "d9d/loop/step/loss_shares.h"
#include "d9d/loop/task/task_types.h"
#include "d9d/modules/module_ptr.h"

namespace d9d {

class AnyMicrobatch {
 public:
  virtual ~AnyMicrobatch();

  // A microbatch with the same tensors and values.
  [[nodiscard]] virtual std::unique_ptr<AnyMicrobatch> copy() const = 0;
  // Replaces everything by what `other`, of the same type, has.
  virtual void assign(AnyMicrobatch&& other) = 0;
  // The leaves of input, shared, state and shares, in leaf order.
  [[nodiscard]] TensorRefs tensors();
  // Of a type for which Microbatch<Types>::kHasKey.
  void write_key(detail::GraphKeyWriter& key) const;

  LossShares shares = {};  // of several losses

 protected:
  AnyMicrobatch() = default;
  AnyMicrobatch(const AnyMicrobatch&) = default;
  AnyMicrobatch& operator=(const AnyMicrobatch&) = default;
  AnyMicrobatch(AnyMicrobatch&&) = default;
  AnyMicrobatch& operator=(AnyMicrobatch&&) = default;

 private:
  // Of input, shared and state.
  virtual void add_tensors(TensorRefs& tensors) = 0;
  virtual void write_values(detail::GraphKeyWriter& key) const = 0;
};

// What forward and loss of a microbatch read, and what they write besides gradients.
template <class Types>
class Microbatch final : public AnyMicrobatch {
 public:
  // Whether a CUDA graph can be found for it: it consists of tensors and plain values.
  static constexpr bool kHasKey =
      kHasGraphKey<InputOf<Types>> && kHasGraphKey<SharedOf<Types>> && kHasGraphKey<StateOf<Types>>;

  Microbatch(InputOf<Types> input_value, SharedOf<Types> shared_value, StateOf<Types> state_value)
      : input(std::move(input_value)), shared(std::move(shared_value)), state(std::move(state_value)) {}

  [[nodiscard]] std::unique_ptr<AnyMicrobatch> copy() const override { return std::make_unique<Microbatch>(*this); }
  void assign(AnyMicrobatch&& other) override { *this = static_cast<Microbatch&&>(other); }

  InputOf<Types> input;
  SharedOf<Types> shared;
  StateOf<Types> state;

 private:
  void add_tensors(TensorRefs& tensors) override {
    detail::add_tensor_refs(input, tensors);
    detail::add_tensor_refs(shared, tensors);
    detail::add_tensor_refs(state, tensors);
  }
  void write_values(detail::GraphKeyWriter& key) const override {
    if constexpr (kHasKey) key.write(input), key.write(shared), key.write(state);
  }
};

}  // namespace d9d
