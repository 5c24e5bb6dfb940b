// Makes exponentials, logarithms and similar functions of CPU tensors correct from the first call on. A program that
// starts threads of its own calls this before; launch(), run_thread_ranks() and DistContext do so themselves.
//
// Example
//   d9d::choose_vector_math();
//   std::jthread other([&] { y = x.exp(); });
//
// docs/decisions/0013-vector-math-before-threads.md says why.
#pragma once

namespace d9d {

// Lets LibTorch's vector mathematics library detect the processor. Thread-safe; later calls do nothing, and concurrent
// calls wait for the first.
void choose_vector_math();

}  // namespace d9d
