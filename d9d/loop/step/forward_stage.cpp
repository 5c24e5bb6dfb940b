#include "d9d/loop/step/forward_stage.h"

#include "d9d/loop/step/training_stage.h"

namespace d9d {

std::vector<at::Tensor> ForwardStage::transfer(MicrobatchIndex microbatch, StageBoundary boundary) const {
  return checked_transfer(at(microbatch), microbatch.value, stage_, boundary);
}

void ForwardStage::begin_forward(MicrobatchIndex microbatch) {
  clock_.microbatch = {.step = static_cast<std::uint64_t>(pack_.index), .number = at(microbatch).number};
}

std::vector<at::Tensor> ForwardStage::forward(MicrobatchIndex microbatch, const std::vector<at::Tensor>& arrived,
                                              bool /*backward_follows*/) {
  Module& module = *stage_.module;
  if (module.backward_follows()) module.set_backward_follows(false);
  const auto index = static_cast<std::size_t>(microbatch.value);
  const auto run = [&]() -> std::vector<at::Tensor> {
    if (!stage_.info.is_last()) return at(microbatch).forward(stage_, arrived);
    run_last(stage_, at(microbatch), arrived, index < pack_.num_counted);
    return {};
  };
  return in_microbatch_of(pack_, index, "in forward", run);
}

void ForwardStage::end_forward(MicrobatchIndex microbatch) {
  if (is_last_of_rank_) at(microbatch).drop_inputs();
}

}  // namespace d9d
