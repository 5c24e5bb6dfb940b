// Numbers the microbatches of a step over all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"

namespace d9d {

// Local. Returns the number, within the step, of each of the `num_microbatches` microbatches of a pack: the numbers of
// its stream (PackStream::microbatch_numbers()), or, if the stream gives none, i R + r for microbatch i of
// data-parallel rank r of R. Throws ConfigError if the stream gives numbers, but not num_microbatches of them.
[[nodiscard]] std::vector<std::uint64_t> microbatch_numbers(const DistContext& context,
                                                            const std::vector<std::int64_t>& of_stream,
                                                            std::size_t num_microbatches);

}  // namespace d9d
