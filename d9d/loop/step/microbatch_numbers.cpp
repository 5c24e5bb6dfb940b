#include "d9d/loop/step/microbatch_numbers.h"

#include "d9d/base/check.h"

namespace d9d {

std::vector<std::uint64_t> microbatch_numbers(const DistContext& context, const std::vector<std::int64_t>& of_stream,
                                              std::size_t num_microbatches) {
  if (!of_stream.empty()) {
    D9D_CHECK(of_stream.size() == num_microbatches, ConfigError,
              "[loop::microbatch_numbers] expected a number for each of the ", num_microbatches,
              " microbatches of a pack, got ", of_stream.size(),
              ". Return one each from the stream's microbatch_numbers(), or none at all.");
    return {of_stream.begin(), of_stream.end()};
  }
  const auto rank = static_cast<std::uint64_t>(context.data_parallel_rank());
  const auto num_ranks = static_cast<std::uint64_t>(context.data_parallel_size());
  std::vector<std::uint64_t> numbers(num_microbatches);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = i * num_ranks + rank;
  return numbers;
}

}  // namespace d9d
