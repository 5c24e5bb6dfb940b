// The numbers that the microbatches of a step have over all ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"

namespace d9d {

// Local. Of a pack of `num_microbatches`: those that its stream knows (PackStream::microbatch_numbers()); if it knows
// none, dealt to the data-parallel ranks in turn. Throws ConfigError unless a stream has one for each.
[[nodiscard]] std::vector<std::uint64_t> microbatch_numbers(const DistContext& context,
                                                            const std::vector<std::int64_t>& of_stream,
                                                            std::size_t num_microbatches);

}  // namespace d9d
