#include "d9d/pipelining/executor/announced_transfers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/base/check.h"
#include "d9d/pipelining/executor/message_layout.h"
#include "d9d/pipelining/executor/transfer_text.h"

namespace d9d {
namespace {

bool has_form_of(const at::Tensor& leaf, const at::Tensor& other) {
  return leaf.sizes() == other.sizes() && leaf.scalar_type() == other.scalar_type();
}

}  // namespace

AnnouncedTransfers announced_transfers(const PipelineStage& stage, StageBoundary boundary,
                                       std::int64_t num_microbatches) {
  AnnouncedTransfers all;
  std::vector<at::Tensor> last;  // the transfer last listed: repetitions of it are left out
  for (std::int64_t i = 0; i < num_microbatches; ++i) {
    std::vector<at::Tensor> leaves = stage.transfer({i}, boundary);
    if (i > 0 && std::ranges::equal(leaves, last, has_form_of)) continue;
    all.text += cat(all.text.empty() ? "" : ", ", "from microbatch ", i, " on ", transfer_text(leaves));
    all.largest_bytes = std::max(all.largest_bytes, message_bytes(leaves));
    last = std::move(leaves);
  }
  return all;
}

}  // namespace d9d
