// Notes that the two ranks of a link exchange before each step through host memory that both see. No device is
// involved: a host waits only until the host of the other rank has begun the same step.
//
// Example
//   StepNotes notes(memory, /*rank=*/0);              // kBytes of zeros
//   notes.write("stage 0 to 1: Float [2, 8]");        // before the step; then the step is queued
//   while (!notes.is_there()) check_alive();
//   notes.compare();                                  // StateError if the notes differ
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace d9d {

class StepNotes {
 public:
  static constexpr std::int64_t kNoteBytes = 2048;
  static constexpr std::int64_t kBytes = 4 * kNoteBytes;  // the notes of this step and of the last one, for each rank

  // memory: kBytes, aligned to 8 bytes. rank: 0 or 1.
  StepNotes(std::byte* memory, std::int64_t rank) : memory_(memory), rank_(rank) {}

  // Begins a step. The text may have any length; errors show the part of it that fits into a note.
  void write(const std::string& text);
  // Returns whether the other rank has begun the step.
  [[nodiscard]] bool is_there() const;
  // Throws StateError, with both texts, if the notes of the two ranks differ.
  void compare() const;

 private:
  struct Note;
  [[nodiscard]] Note& note_of(std::int64_t rank) const;

  std::byte* memory_;
  std::int64_t rank_;
  std::uint64_t step_ = 0;
};

}  // namespace d9d
