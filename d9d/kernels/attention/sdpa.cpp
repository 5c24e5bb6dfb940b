#include "d9d/kernels/attention/sdpa.h"

#include <cmath>

#include <ATen/ATen.h>

#include "d9d/base/check.h"

namespace d9d::kernels::detail {

void check_sdpa_shapes(const char* core, const SdpaInputs& inputs) {
  const auto &q = inputs.query, &k = inputs.key, &v = inputs.value;
  D9D_CHECK(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes() && q.size(0) == k.size(0) && q.size(3) == k.size(3),
            ConfigError, "[kernels::", core,
            "] expected query [batch, queries, heads, features] and key, value [batch, keys, kv heads, features], got ",
            q.sizes(), ", ", k.sizes(), " and ", v.sizes(), ". Split the heads before the call.");
  D9D_CHECK(k.size(2) > 0 && q.size(2) % k.size(2) == 0, ConfigError, "[kernels::", core,
            "] expected query heads in a multiple of key heads = ", k.size(2), ", got ", q.size(2),
            ". Change one of the two.");
  D9D_CHECK(!inputs.sinks || inputs.sinks->sizes() == at::IntArrayRef{q.size(2)}, ConfigError, "[kernels::", core,
            "] expected one sink a query head = ", q.size(2), ", got ", inputs.sinks->sizes(),
            ". Give each query head one.");
  D9D_CHECK(!inputs.mask || inputs.mask->scalar_type() == at::kBool || at::isFloatingType(inputs.mask->scalar_type()),
            ConfigError, "[kernels::", core, "] expected a boolean (true keeps) or floating (added) mask, got ",
            inputs.mask->scalar_type(), ". Cast it to the one you mean.");
  D9D_CHECK(inputs.packed || !inputs.packed_keys, ConfigError, "[kernels::", core,
            "] expected packed_keys with packed queries only, got some without. Set packed.");
  if (!inputs.packed) return;
  D9D_CHECK(q.size(0) == 1 && (k.size(1) == q.size(1) || inputs.packed_keys) && !inputs.mask, ConfigError,
            "[kernels::", core,
            "] expected packed sequences in one row, as many keys as queries and no mask, got query ", q.sizes(),
            ", key ", k.sizes(), inputs.mask ? " and a mask" : "", ". Flatten the batch into the sequence.");
  const auto& cu_seqlens = inputs.packed->cu_seqlens;
  D9D_CHECK(cu_seqlens.dim() == 1 && cu_seqlens.numel() > 0 && cu_seqlens.scalar_type() == at::kInt &&
                cu_seqlens.device() == q.device(),
            ConfigError, "[kernels::", core, "] expected cu_seqlens [sequences + 1] int32 on ", q.device(), ", got ",
            cu_seqlens.sizes(), " ", cu_seqlens.scalar_type(), " on ", cu_seqlens.device(), ". Convert it.");
  D9D_CHECK(inputs.packed->max_length > 0 || q.size(1) == 0, ConfigError, "[kernels::", core,
            "] expected max_length = the positions of the longest packed sequence, got ", inputs.packed->max_length,
            ". Set it.");
  if (!inputs.packed_keys) return;
  const auto is_of_keys = [&](const at::Tensor& x, std::int64_t size) {
    return x.sizes() == at::IntArrayRef{size} && x.scalar_type() == at::kInt && x.device() == q.device();
  };
  const std::int64_t num_bounds = cu_seqlens.numel();
  const at::Tensor& lengths = inputs.packed_keys->lengths;
  const bool fits = is_of_keys(inputs.packed_keys->cu_seqlens, num_bounds) &&
                    (!lengths.defined() || is_of_keys(lengths, num_bounds - 1));
  D9D_CHECK(fits, ConfigError, "[kernels::", core, "] expected packed_keys of cu_seqlens [", num_bounds,
            "] and lengths [", num_bounds - 1, "] or none, int32 on ", q.device(), ", got ",
            inputs.packed_keys->cu_seqlens.sizes(), " and ", lengths.defined() ? lengths.sizes() : at::IntArrayRef(),
            ". Give each packed sequence its keys.");
}

at::Tensor lengths_of(const PackedKeys& keys) { return keys.lengths.defined() ? keys.lengths : keys.cu_seqlens.diff(); }

at::Tensor in_one_row(const at::Tensor& x) { return x.flatten(0, 1).unsqueeze(0); }

double logit_scale(const SdpaInputs& inputs, const SdpaOptions& options) {
  return options.scale.value_or(1.0 / std::sqrt(static_cast<double>(inputs.query.size(3))));
}

at::Tensor hidden_by_position(const SdpaInputs& inputs, const SdpaOptions& options) {
  const auto index_options = inputs.query.options().dtype(at::kLong);
  auto query = (at::arange(inputs.query.size(1), index_options) + options.first_query).unsqueeze(1);
  auto key = at::arange(inputs.key.size(1), index_options);
  at::Tensor hidden;
  const auto hide = [&](const at::Tensor& more) { hidden = hidden.defined() ? hidden.logical_or(more) : more; };
  if (inputs.packed_keys) {
    const auto sequence_of = [](const at::Tensor& cu_seqlens, const at::Tensor& row) {
      return at::searchsorted(cu_seqlens, row, /*out_int32=*/false, /*right=*/true) - 1;
    };
    const at::Tensor &cu_seqlens = inputs.packed_keys->cu_seqlens, lengths = lengths_of(*inputs.packed_keys);
    const auto of_query = sequence_of(inputs.packed->cu_seqlens, query), of_key = sequence_of(cu_seqlens, key);
    hide(of_query != of_key);
    // A row behind the last sequence's room belongs to none.
    const auto known = of_key.clamp_max(lengths.numel() - 1);
    key = key - cu_seqlens.index({known});
    hide(key >= lengths.index({known}));
    // The last query of a sequence is at its last key.
    query = query - inputs.packed->cu_seqlens.index({of_query + 1}) + lengths.index({of_query});
  }
  if (options.causal) hide(key > query);
  if (options.window_left) hide(key < query - *options.window_left);
  if (options.window_right) hide(key > query + *options.window_right);
  if (inputs.packed && !inputs.packed_keys) {
    const auto sequence = at::searchsorted(inputs.packed->cu_seqlens, key, /*out_int32=*/false, /*right=*/true);
    hide(sequence.unsqueeze(1) != sequence);
  }
  return hidden;
}

SdpaOutput each_sequence(const std::function<SdpaOutput(const SdpaInputs&, const SdpaOptions&)>& core,
                         const SdpaInputs& inputs, const SdpaOptions& options) {
  const auto cu_seqlens = inputs.packed->cu_seqlens.contiguous();
  const auto* const begin = cu_seqlens.const_data_ptr<std::int32_t>();
  const std::int64_t num_positions = inputs.query.size(1), num_sequences = cu_seqlens.numel() - 1;
  D9D_CHECK(begin[0] == 0 && begin[num_sequences] == num_positions, ConfigError,
            "[kernels::attention] expected cu_seqlens from 0 to the positions = ", num_positions, ", got ", begin[0],
            " to ", begin[num_sequences], ". Append the missing sequence.");
  at::Tensor key_begins, key_lengths;
  if (inputs.packed_keys) {
    key_begins = inputs.packed_keys->cu_seqlens.contiguous();
    key_lengths = lengths_of(*inputs.packed_keys).contiguous();
    const std::int32_t first = key_begins.const_data_ptr<std::int32_t>()[0];
    const std::int32_t end = key_begins.const_data_ptr<std::int32_t>()[num_sequences];
    D9D_CHECK(inputs.packed_keys->lengths.defined() || (first == 0 && end == inputs.key.size(1)), ConfigError,
              "[kernels::attention] expected cu_seqlens of packed_keys without lengths from 0 to the keys = ",
              inputs.key.size(1), ", got ", first, " to ", end, ". Set lengths, or narrow the keys.");
  }
  const bool takes_fewer = inputs.packed_keys && !inputs.packed_keys->lengths.defined() && !options.causal &&
                           !options.window_left && !options.window_right;
  std::vector<at::Tensor> outs, logsumexps;
  for (std::int64_t n = 0; n < num_sequences; ++n) {
    const std::int64_t length = begin[n + 1] - begin[n];
    D9D_CHECK(length >= 0 && length <= inputs.packed->max_length, ConfigError,
              "[kernels::attention] expected ascending cu_seqlens with lengths up to max_length = ",
              inputs.packed->max_length, ", got ", begin[n], " and ", begin[n + 1], ". Change one of the two.");
    if (length == 0) continue;
    std::int64_t first_key = begin[n], num_keys = length;
    if (inputs.packed_keys) {
      const auto* const room = key_begins.const_data_ptr<std::int32_t>() + n;
      first_key = room[0];
      num_keys = key_lengths.const_data_ptr<std::int32_t>()[n];
      D9D_CHECK(
          num_keys >= (takes_fewer ? 0 : length) && num_keys <= room[1] - room[0] && room[1] <= inputs.key.size(1),
          ConfigError, "[kernels::attention] expected lengths of packed_keys from ", takes_fewer ? 0 : length,
          ", for the sequence's queries, to its room, got ", num_keys, " from ", room[0], " to before ", room[1],
          " of ", inputs.key.size(1), ". Make the room larger.");
    }
    const auto query = inputs.query.narrow(1, begin[n], length);
    const auto key = inputs.key.narrow(1, first_key, num_keys), value = inputs.value.narrow(1, first_key, num_keys);
    SdpaOptions how = options;
    how.first_query += num_keys - length;
    const auto [out, logsumexp] = core({.query = query, .key = key, .value = value, .sinks = inputs.sinks}, how);
    outs.push_back(out);
    logsumexps.push_back(logsumexp);
  }
  if (outs.empty()) return core({.query = inputs.query, .key = inputs.key, .value = inputs.value}, options);
  return {.out = at::cat(outs, 1), .logsumexp = logsumexps.front().defined() ? at::cat(logsumexps, 2) : at::Tensor()};
}

}  // namespace d9d::kernels::detail
