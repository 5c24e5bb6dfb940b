// Compares programs with those of Python d9d.
#include <cstdio>

#include <gtest/gtest.h>

#include "d9d/base/fnv1a.h"
#include "d9d/pipelining/schedules/insert_messages.h"

#include "tests/pipelining/golden_schedules.h"

namespace d9d::golden_programs_test {
namespace {

std::string hash_of(const std::string& text) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(fnv1a(text)));
  return digits;
}

// A line has two hashes for each rank, of computations and of the program, or one that stands for both.
std::string computations_hash(const std::string& hashes) { return hashes.substr(0, 16); }
std::string program_hash(const std::string& hashes) { return hashes.substr(hashes.size() - 16); }

TEST(GoldenPrograms, Every_rank_computes_in_the_order_of_Python_d9d) {
  int num_programs = 0;
  for (const auto& golden : test::golden_configurations()) {
    const auto program = test::golden_computations(golden.schedule, golden.num_ranks, golden.num_microbatches);
    ASSERT_EQ(program.ranks.size(), golden.hashes.size());
    for (std::size_t rank = 0; rank < golden.hashes.size(); ++rank, ++num_programs) {
      EXPECT_EQ(hash_of(to_text(program.ranks[rank])), computations_hash(golden.hashes[rank]))
          << golden.schedule << ", M = " << golden.num_microbatches << ", rank " << rank << ": "
          << to_text(program.ranks[rank]);
    }
  }
  EXPECT_EQ(num_programs, 1151);
}

TEST(GoldenPrograms, The_sweep_places_messages_as_Python_d9d_does) {
  for (const auto& golden : test::golden_configurations()) {
    const auto program =
        place_messages_by_sweep(test::golden_computations(golden.schedule, golden.num_ranks, golden.num_microbatches));
    for (std::size_t rank = 0; rank < golden.hashes.size(); ++rank) {
      EXPECT_EQ(hash_of(to_text(program.ranks[rank])), program_hash(golden.hashes[rank]))
          << golden.schedule << ", M = " << golden.num_microbatches << ", rank " << rank << ": "
          << to_text(program.ranks[rank]);
    }
  }
}

TEST(GoldenPrograms, Small_ones_in_full) {
  const auto text = [](const char* schedule, std::int64_t num_ranks, std::int64_t num_microbatches) {
    return to_text(place_messages_by_sweep(test::golden_computations(schedule, num_ranks, num_microbatches)));
  };
  EXPECT_EQ(text("gpipe", 2, 2),
            "r0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B1 0B1 0RECV_B0 0B0\n"
            "r1: 1RECV_F0 1F0 1RECV_F1 1F1 1B1 1SEND_B1 1B0 1SEND_B0\n");
  EXPECT_EQ(text("1f1b V=1 zb", 2, 4),
            "r0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0I0 0W0 0RECV_B1 0F2 0SEND_F2 0I1 0W1 0RECV_B2 0F3 0SEND_F3 0I2 "
            "0W2 0RECV_B3 0I3 0W3\n"
            "r1: 1RECV_F0 1F0 1RECV_F1 1I0 1SEND_B0 1F1 1I1 1SEND_B1 1RECV_F2 1W0 1F2 1I2 1SEND_B2 1RECV_F3 1W1 1F3 "
            "1I3 1SEND_B3 1W2 1W3\n");
  EXPECT_EQ(to_text(test::golden_computations("zero_bubble_v", 4, 2)),
            "r0: 0F0 0F1 7F0 7I0 7W0 7F1 7I1 7W1 0I0 0W0 0I1 0W1\n"
            "r1: 1F0 1F1 6F0 6F1 6I0 6W0 6I1 6W1 1I0 1W0 1I1 1W1\n"
            "r2: 2F0 2F1 5F0 5F1 5I0 5W0 5I1 5W1 2I0 2W0 2I1 2W1\n"
            "r3: 3F0 4F0 3F1 4F1 4I0 4W0 3I0 3W0 4I1 4W1 3I1 3W1\n");
  EXPECT_EQ(to_text(test::golden_computations("dual_pipe_v", 1, 2)), "r0: 0F0 1F0 0F1 1B0 1F1|0B0 1B1 0I1 0W1\n");
}

}  // namespace
}  // namespace d9d::golden_programs_test
