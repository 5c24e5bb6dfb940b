// Work on a list by several threads, each of which takes the next item.
//
// Example
//   for_each_in_threads(requests.size(), 4, [&] {
//     return [&, buffer = at::empty({kBytes}, at::kByte)](std::size_t i) { serve(requests[i], buffer); };
//   });
#pragma once

#include <cstddef>
#include <functional>

namespace d9d {

// Calls make_worker() on each of at most `num_threads` threads, this one among them, and what it returns with
// 0 ... count - 1, each once. Operators of LibTorch use one thread there and record no gradients. Throws the first
// error, and begins nothing after it.
void for_each_in_threads(std::size_t count, int num_threads,
                         const std::function<std::function<void(std::size_t)>()>& make_worker);

}  // namespace d9d
