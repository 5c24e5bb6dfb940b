// Runs work on a list of items on several threads, each of which takes the next item when it has finished one.
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

// Local, blocking. Calls make_worker() once on each thread; each item of 0 .. num_items - 1 is then passed to one
// thread's worker. The calling thread is one of the threads; meanwhile operators of LibTorch use no other threads and
// record no gradients. After an error no further item is begun; throws the first error.
void work_through(std::size_t num_items, int num_threads, const std::function<WorkOnItem()>& make_worker);

}  // namespace d9d
