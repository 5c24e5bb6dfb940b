#include "d9d/parallelism/exchange/exchange_memory.h"

#include <utility>

#include "d9d/modules/gradient_reduction.h"

namespace d9d {
namespace {

// It sums no gradients; it is a GradientReduction in order to be closed where a job sleeps or ends.
class ClosedWithReductions final : public GradientReduction {
 public:
  explicit ClosedWithReductions(std::shared_ptr<ExchangeMemory> memory) : memory_(std::move(memory)) {}

  bool sums_gradients() const override { return false; }
  void begin_pass(const StagePass& /*pass*/) override {}
  void end_pass() override {}
  void finish() override {}
  void clear() override {}
  void abandon() override {}
  void close() override { memory_->close(); }
  std::int64_t num_closings() const override { return memory_->num_closings(); }
  [[nodiscard]] std::int64_t num_bytes() const { return memory_->num_bytes(); }

 private:
  std::shared_ptr<ExchangeMemory> memory_;
};

class ExchangeMemoryHook final : public ModuleHook {
 public:
  explicit ExchangeMemoryHook(std::shared_ptr<ExchangeMemory> memory)
      : reduction_(std::make_shared<ClosedWithReductions>(std::move(memory))) {}
  void before_forward(Module& /*module*/, const TensorRefs& /*inputs*/) override {}
  void after_forward(Module& /*module*/, const TensorRefs& /*outputs*/) override {}
  std::shared_ptr<GradientReduction> gradient_reduction() const override { return reduction_; }

 private:
  std::shared_ptr<ClosedWithReductions> reduction_;
};

}  // namespace

void add_exchange_memory(Module& module, std::shared_ptr<ExchangeMemory> memory) {
  module.add_hook(std::make_shared<ExchangeMemoryHook>(std::move(memory)));
}

std::int64_t exchange_bytes(Module& module) {
  std::int64_t sum = 0;
  for (const auto& reduction : gradient_reductions(module)) {
    if (const auto* const closed = dynamic_cast<const ClosedWithReductions*>(reduction.get())) {
      sum += closed->num_bytes();
    }
  }
  return sum;
}

}  // namespace d9d
