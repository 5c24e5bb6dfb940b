// The allocations of building a pipeline stage, traced operator by operator. The trace covers the meta device, where
// memory use would not show that layers of other stages were built and discarded.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/memory_peak.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::stage_allocation_test {
namespace {

// Counts the elements of all tensors that `aten::empty...` of this thread makes, on any device.
class AllocationTrace {
 public:
  AllocationTrace() {
    num_elements = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&start, &end).needsOutputs(true));
  }
  ~AllocationTrace() { at::removeCallback(handle_); }
  AllocationTrace(const AllocationTrace&) = delete;
  AllocationTrace& operator=(const AllocationTrace&) = delete;

  [[nodiscard]] static std::int64_t numel() { return num_elements; }

 private:
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction&) { return nullptr; }
  static void end(const at::RecordFunction& function, at::ObserverContext*) {
    if (!std::string_view(function.name()).starts_with("aten::empty")) return;
    for (const c10::IValue& output : function.outputs()) {
      if (output.isTensor()) num_elements += output.toTensor().numel();
    }
  }

  // lint: allow(mutable-global): callbacks are plain functions
  // lint: allow(thread-local): callbacks run on the thread that allocates
  static inline thread_local std::int64_t num_elements = 0;
  at::CallbackHandle handle_;
};

template <class Parameters>
ModulePtr<DecoderForCausalLM> make_stage(const Parameters& parameters, std::int64_t num_stages, std::int64_t stage) {
  return make_decoder_for_causal_lm(
      test::make_backbone(parameters, {.stage = {.num_stages = num_stages, .current_stage = stage}}));
}

std::int64_t numel_of(const Module& module) {
  std::int64_t sum = 0;
  for (const auto& [name, parameter] : module.named_parameters()) sum += parameter->local().numel();
  for (const auto& [name, buffer] : module.named_buffers()) sum += buffer->local.numel();
  return sum;
}

template <class Parameters>
void expect_stages_allocate_their_own(Parameters parameters) {
  constexpr std::int64_t kNumStages = 4;
  parameters.num_hidden_layers = 8;
  const std::int64_t whole = numel_of(*make_stage(parameters, 1, 0));
  for (std::int64_t stage = 0; stage < kNumStages; ++stage) {
    SCOPED_TRACE(stage);
    const AllocationTrace trace;
    const auto module = make_stage(parameters, kNumStages, stage);
    const std::int64_t built = trace.numel();
    EXPECT_EQ(built, numel_of(*module));
    EXPECT_LT(built, whole / 2);

    const test::MemoryPeak memory;
    module->materialize(at::kCPU);
    EXPECT_LE(memory.peak_bytes(), 9 * numel_of(*module));  // four or eight bytes for each element, and alignment
    EXPECT_EQ(memory.peak_bytes(), memory.live_bytes());
  }
}

TEST(StageAllocation, Of_a_dense_decoder_is_its_own_layers) { expect_stages_allocate_their_own(test::tiny_dense()); }

TEST(StageAllocation, Of_a_mixture_of_experts_is_its_own_layers) { expect_stages_allocate_their_own(test::tiny_moe()); }

// The trace must show what the last test looks for.
TEST(StageAllocation, Trace_sees_what_is_built_and_deleted) {
  const AllocationTrace trace;
  const auto kept = make_module<Linear>(LinearConfig{3, 5});
  (void)make_module<Linear>(LinearConfig{7, 11});
  EXPECT_EQ(trace.numel(), 3 * 5 + 7 * 11);
}

}  // namespace
}  // namespace d9d::stage_allocation_test
