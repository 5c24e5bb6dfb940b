// Cases that are too many for each run of continuous integration take turns: a run has a part of them, and those of
// other commits have others. D9D_TEST_TURN, a number, says which part (CI takes it from the commit; the default is 0),
// and D9D_WHOLE_LIST asks for all, as `make test-full` does.
//
// Example
//   Turns turns(3);
//   for (const Mesh& mesh : meshes) {
//     if (turns.has_next()) expect_trains(mesh);
//   }
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

namespace d9d::test {

class Turns {
 public:
  explicit Turns(unsigned long num_turns)
      : num_turns_(std::getenv("D9D_WHOLE_LIST") != nullptr ? 1 : num_turns), number_(turn() % num_turns_) {}
  // Whether it is the next case's turn.
  [[nodiscard]] bool has_next() { return number_++ % num_turns_ == 0; }

 private:
  static unsigned long turn() {
    const char* const text = std::getenv("D9D_TEST_TURN");
    return text == nullptr ? 0 : std::stoul(text);
  }

  unsigned long num_turns_;
  unsigned long number_;
};

// The cases whose turn it is.
template <class Case>
[[nodiscard]] std::vector<Case> in_turn(const std::vector<Case>& cases, unsigned long num_turns) {
  Turns turns(num_turns);
  std::vector<Case> chosen;
  for (const Case& each : cases) {
    if (turns.has_next()) chosen.push_back(each);
  }
  return chosen;
}

}  // namespace d9d::test
