// The model of a job, and its layout over the ranks of a context.
//
// Example
//   const auto model = make_layout_model(job, layout.checkpoints);      // on meta
//   parallelize(context, *model, layout);
//   model->materialize(at::kCPU);
#pragma once

#include <memory>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/models/decoder/decoder_with_heads.h"
#include "d9d/models/decoder/pre_norm_decoder.h"

#include "tests/layout/layout_job.h"

namespace d9d::test {

constexpr std::int64_t kLayoutVocabulary = 26;  // each of eight ranks has some, not equally many
constexpr std::int64_t kLayoutHidden = 16;
constexpr std::int64_t kLayoutExperts = 8;
constexpr std::int64_t kLayoutClasses = 3;
constexpr std::int64_t kLayoutEmbedding = 5;

// Names of the heads in DecoderWithHeads.
[[nodiscard]] const char* name_of(Head head);

// A decoder with heads, or one pipeline stage of it. Depending on the job and the layout its layers run twice, or are
// recomputed together.
class LayoutModel : public Module {
 public:
  LayoutModel(const LayoutJob& job, Checkpoints checkpoints, const PipelineStageInfo& stage);
  [[nodiscard]] DecoderWithHeads::Output forward(const SequenceStageInput& input,
                                                 const SequenceHeadsShared& shared) const;
  void begin_microbatch(std::int64_t step, std::int64_t number);  // `number`: within the step
  [[nodiscard]] std::vector<std::shared_ptr<Module>> heads() const;

  const ModulePtr<PreNormDecoder> backbone;
  const ModulePtr<DecoderWithHeads> decoder;

 private:
  [[nodiscard]] DecoderLayerOutput run_layers(const DecoderLayerOutput& input, const LayerContext& context) const;

  const int num_passes_;
  const bool is_one_checkpoint_;
};

// Built on the meta device, in its dtype, with frozen parameters already frozen.
[[nodiscard]] ModulePtr<LayoutModel> make_layout_model(const LayoutJob& job, Checkpoints checkpoints,
                                                       const PipelineStageInfo& stage = {});

// To be called before materialize. Throws the library's error for a layout that it refuses.
void parallelize(const DistContext& context, const LayoutModel& model, const Layout& layout);

}  // namespace d9d::test
