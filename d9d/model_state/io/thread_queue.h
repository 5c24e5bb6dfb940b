// Work on a list by several threads, each of which takes the next item when it has finished one.
//
// Example
//   work_through(requests.size(), 4, [&] {
//     return [&, buffer = Buffer()](std::size_t i) mutable { serve(requests[i], buffer); };
//   });
#pragma once

#include <cstddef>
#include <functional>

namespace d9d {

using WorkOnItem = std::function<void(std::size_t item)>;

// Local, blocking. Calls what `make_worker` returned, once on each thread, with each of 0 .. num_items - 1. The calling
// thread is one of the threads; operators of LibTorch use no others meanwhile, and record no gradients. After an error
// no item is begun; throws the first one.
void work_through(std::size_t num_items, int num_threads, const std::function<WorkOnItem()>& make_worker);

}  // namespace d9d
