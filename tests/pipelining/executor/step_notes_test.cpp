#include "d9d/pipelining/executor/step_notes.h"

#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "d9d/base/check.h"

namespace d9d::test::step_notes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

struct TwoRanks {
  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>(StepNotes::kBytes / 8);
  StepNotes first{reinterpret_cast<std::byte*>(memory.data()), 0};
  StepNotes second{reinterpret_cast<std::byte*>(memory.data()), 1};
};

TEST(StepNotes, Are_there_when_the_other_rank_has_begun_the_same_step) {
  TwoRanks ranks;
  for (int step = 0; step < 5; ++step) {
    ranks.first.write("a");
    EXPECT_FALSE(ranks.first.is_there());
    ranks.second.write("a");
    EXPECT_TRUE(ranks.first.is_there());
    EXPECT_TRUE(ranks.second.is_there());
    ranks.first.compare();
    ranks.second.compare();
  }
}

TEST(StepNotes, That_differ_are_refused_on_both_ranks_with_both_texts) {
  TwoRanks ranks;
  ranks.first.write("Float [2, 8]");
  ranks.second.write("Float [2, 6]");
  for (const StepNotes* const own : {&ranks.first, &ranks.second}) {
    EXPECT_THAT([&] { own->compare(); },
                ThrowsMessage<StateError>(HasSubstr("got Float [2, 8] on the first and Float [2, 6] on the second")));
  }
}

TEST(StepNotes, That_differ_behind_what_a_note_holds_are_refused) {
  TwoRanks ranks;
  const std::string same(StepNotes::kNoteBytes, 'x');
  ranks.first.write(same + "1");
  ranks.second.write(same + "2");
  EXPECT_THAT([&] { ranks.first.compare(); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("xxx ..."), Not(HasSubstr("1 on")))));
}

// A rank is at most one step ahead, so it does not overwrite a note that the other rank still reads.
TEST(StepNotes, Are_read_whole_whoever_is_ahead) {
  constexpr int kNumSteps = 2000;
  TwoRanks ranks;
  const auto run = [](StepNotes& notes) {
    for (int step = 0; step < kNumSteps; ++step) {
      notes.write(std::string(static_cast<std::size_t>(step % 50), static_cast<char>('a' + step % 26)));
      while (!notes.is_there()) std::this_thread::yield();
      notes.compare();
    }
  };
  std::thread other([&] { run(ranks.second); });
  run(ranks.first);
  other.join();
}

}  // namespace
}  // namespace d9d::test::step_notes_test
