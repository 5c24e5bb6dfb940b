// The numbers that the microbatches of a step have over all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"

namespace d9d {

// Local. The numbers, within the step, of the `num_microbatches` of a pack: those that its stream gives
// (PackStream::microbatch_numbers()). If it gives none, microbatch i of data-parallel rank r of R is number i R + r.
// Throws ConfigError if a stream gives another number of them.
[[nodiscard]] std::vector<std::uint64_t> microbatch_numbers(const DistContext& context,
                                                            const std::vector<std::int64_t>& of_stream,
                                                            std::size_t num_microbatches);

}  // namespace d9d
