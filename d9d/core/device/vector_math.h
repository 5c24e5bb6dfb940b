// Exponentials, logarithms and their like of CPU tensors, right from the first one on: a program that starts threads of
// its own calls this before. launch(), run_thread_ranks() and DistContext do.
//
// Example
//   d9d::choose_vector_math();
//   std::jthread other([&] { y = x.exp(); });
//
// docs/decisions/0013-vector-math-before-threads.md says why.
#pragma once

namespace d9d {

// Lets LibTorch's library of vector mathematics find out which processor this is. Any thread; later calls return at
// once, and calls at the same time wait for the first.
void choose_vector_math();

}  // namespace d9d
