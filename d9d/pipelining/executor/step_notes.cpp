#include "d9d/pipelining/executor/step_notes.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <string_view>

#include "d9d/base/check.h"
#include "d9d/base/fnv1a.h"

namespace d9d {

struct StepNotes::Note {
  std::uint64_t step;  // written last, read first
  std::uint64_t hash;  // hash of the whole text
  std::uint64_t num_characters;
  std::array<char, kNoteBytes - 24> text;

  [[nodiscard]] std::string shown() const {
    const std::string_view part(text.data(), std::min<std::size_t>(num_characters, text.size()));
    return cat(part, num_characters > text.size() ? " ..." : "");
  }
};

// Two notes a rank are enough. A rank writes the note of step n after it has compared that of step n - 1. So the other
// rank has begun step n - 1, has compared step n - 2, and does not read the note of step n - 2 any more.
StepNotes::Note& StepNotes::note_of(std::int64_t rank) const {
  static_assert(sizeof(Note) == kNoteBytes);
  return *reinterpret_cast<Note*>(memory_ + (2 * rank + static_cast<std::int64_t>(step_ % 2)) * kNoteBytes);
}

void StepNotes::write(const std::string& text) {
  ++step_;
  Note& note = note_of(rank_);
  note.hash = fnv1a(text);
  note.num_characters = text.size();
  std::copy_n(text.begin(), std::min(text.size(), note.text.size()), note.text.begin());
  std::atomic_ref(note.step).store(step_, std::memory_order_release);
}

bool StepNotes::is_there() const {
  return std::atomic_ref(note_of(1 - rank_).step).load(std::memory_order_acquire) == step_;
}

void StepNotes::compare() const {
  const Note& own = note_of(rank_);
  const Note& other = note_of(1 - rank_);
  D9D_CHECK(
      own.hash == other.hash && own.num_characters == other.num_characters, StateError,
      "[pipelining::executor] expected both ranks of a link to announce the same transfers for a step, got ",
      rank_ == 0 ? own.shown() : other.shown(), " on the first and ", rank_ == 0 ? other.shown() : own.shown(),
      " on the second. Correct the stages' transfers, or the data: all ranks of a pipeline read the same samples.");
}

}  // namespace d9d
