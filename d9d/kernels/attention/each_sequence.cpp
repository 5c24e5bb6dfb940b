#include "d9d/kernels/attention/each_sequence.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::kernels::detail {

SdpaOutput each_sequence(const std::function<SdpaOutput(const SdpaInputs&, const SdpaOptions&)>& core,
                         const SdpaInputs& inputs, const SdpaOptions& options) {
  const auto cu_seqlens = inputs.packed->cu_seqlens.contiguous();
  const auto* const begin = cu_seqlens.const_data_ptr<std::int32_t>();
  const std::int64_t num_positions = inputs.query.size(1), num_sequences = cu_seqlens.numel() - 1;
  D9D_CHECK(begin[0] == 0 && begin[num_sequences] == num_positions, ConfigError,
            "[kernels::attention] expected cu_seqlens from 0 to the positions = ", num_positions, ", got ", begin[0],
            " to ", begin[num_sequences], ". Append the missing sequence.");
  std::vector<at::Tensor> outs, logsumexps;
  for (std::int64_t n = 0; n < num_sequences; ++n) {
    const std::int64_t length = begin[n + 1] - begin[n];
    D9D_CHECK(length >= 0 && length <= inputs.packed->max_length, ConfigError,
              "[kernels::attention] expected ascending cu_seqlens with lengths up to max_length = ",
              inputs.packed->max_length, ", got ", begin[n], " and ", begin[n + 1], ". Change one of the two.");
    if (length == 0) continue;
    const auto part = [&](const at::Tensor& x) { return x.narrow(1, begin[n], length); };
    const auto query = part(inputs.query), key = part(inputs.key), value = part(inputs.value);
    const auto [out, logsumexp] = core({.query = query, .key = key, .value = value, .sinks = inputs.sinks}, options);
    outs.push_back(out);
    logsumexps.push_back(logsumexp);
  }
  if (outs.empty()) return core({.query = inputs.query, .key = inputs.key, .value = inputs.value}, options);
  return {.out = at::cat(outs, 1), .logsumexp = logsumexps.front().defined() ? at::cat(logsumexps, 2) : at::Tensor()};
}

}  // namespace d9d::kernels::detail
