// What the two ranks of a link tell each other before each step, by memory of the host that both see: neither device is
// asked, and a host waits only for one that is more than a step behind.
//
// Example
//   StepNotes notes(memory, /*rank=*/0);              // zeros, kBytes
//   notes.write("stage 0 to 1: Float [2, 8]");        // before the step; then the step is queued
//   while (!notes.is_there()) check_alive();
//   notes.compare();                                  // StateError if the other's note is another
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace d9d {

class StepNotes {
 public:
  static constexpr std::int64_t kNoteBytes = 2048;
  static constexpr std::int64_t kBytes = 4 * kNoteBytes;  // of each rank the notes of this step and of the last one

  // memory: kBytes, at a multiple of 8. rank: 0 or 1.
  StepNotes(std::byte* memory, std::int64_t rank) : memory_(memory), rank_(rank) {}

  // Begins a step. The text may be of any length; as much as a note holds is shown.
  void write(const std::string& text);
  // Whether the other rank has begun the step.
  [[nodiscard]] bool is_there() const;
  // Throws StateError, with both texts, if the other's is not the same.
  void compare() const;

 private:
  struct Note;
  [[nodiscard]] Note& note_of(std::int64_t rank) const;

  std::byte* memory_;
  std::int64_t rank_;
  std::uint64_t step_ = 0;
};

}  // namespace d9d
