#include "d9d/kernels/grouped_mm/expert_token_groups.h"

#include <mutex>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::kernels {

struct ExpertTokenGroups::HostCounts {
  std::once_flag once;
  std::vector<std::int64_t> counts;
};

ExpertTokenGroups ExpertTokenGroups::from_counts(const at::Tensor& counts) {
  D9D_CHECK(counts.dim() == 1, ConfigError, "[kernels::ExpertTokenGroups] expected counts of shape [groups], got ",
            counts.sizes(), ". Pass one count a group.");
  return ExpertTokenGroups(at::constant_pad_nd(counts.cumsum(0, at::kInt), {1, 0}));
}

ExpertTokenGroups::ExpertTokenGroups(at::Tensor offsets)
    : offsets_(std::move(offsets)), host_(std::make_shared<HostCounts>()) {
  D9D_CHECK(offsets_.dim() == 1 && offsets_.numel() >= 1 && offsets_.scalar_type() == at::kInt, ConfigError,
            "[kernels::ExpertTokenGroups] expected int32 offsets of shape [groups + 1], got ", offsets_.sizes(), " ",
            offsets_.scalar_type(), ". Use from_counts to make them.");
}

ExpertTokenGroups::ExpertTokenGroups(at::Tensor offsets, std::vector<std::int64_t> host_counts)
    : ExpertTokenGroups(std::move(offsets)) {
  D9D_CHECK(static_cast<std::int64_t>(host_counts.size()) == num_groups(), ConfigError,
            "[kernels::ExpertTokenGroups] expected as many host counts as groups = ", num_groups(), ", got ",
            host_counts.size(), ". Pass the counts that the offsets were made of.");
  std::call_once(host_->once, [&] { host_->counts = std::move(host_counts); });
}

at::Tensor ExpertTokenGroups::counts() const { return offsets_.diff(); }

const std::vector<std::int64_t>& ExpertTokenGroups::host_counts() const {
  std::call_once(host_->once, [this] {
    const auto counts_on_host = counts().to(at::kCPU);
    const auto* first = counts_on_host.const_data_ptr<std::int32_t>();
    host_->counts.assign(first, first + num_groups());
  });
  return host_->counts;
}

}  // namespace d9d::kernels
