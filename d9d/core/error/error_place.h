// Adds to an exception the place in a model or job where it was thrown. Code that knows the place adds it while the
// exception passes through.
//
// Example
//   with_error_place("in compute_loss", [&] { return task.compute_loss(output); });
//   // expected a tensor of 2 dims, got 3 (in compute_loss)
//
// An exception keeps its type. Exceptions of other types than this library's and LibTorch's cannot store places; theirs
// are kept in a list of the process, where error_line() finds them.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace c10 {
class Error;
}

namespace d9d {

// Both are called in a catch block and concern the exception that is being handled.
[[nodiscard]] bool has_error_place();
void add_error_place(const std::string& place);

// Returns work(). Adds `place` to an exception that it throws without a place.
template <class Work>
decltype(auto) with_error_place(std::string_view place, const Work& work) {
  try {
    return work();
  } catch (const std::exception&) {
    if (!has_error_place()) add_error_place(std::string(place));
    throw;
  }
}

// Called in a catch block. Returns the text that a program prints for the error, on one line, with its places. Uses
// only the first line of an error of LibTorch. If memory was short, the text names a remedy.
[[nodiscard]] std::string error_line(const std::exception& error);
// Whether the error says that LibTorch could not allocate memory, on a CPU or a GPU.
[[nodiscard]] bool is_out_of_memory(const c10::Error& error);
// The text for anything thrown that is not a std::exception.
inline constexpr const char* kUnknownException = "an exception that is no std::exception";

}  // namespace d9d
