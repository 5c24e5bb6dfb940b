#include "d9d/core/peer_memory/shared_file.h"

#include <unistd.h>

#include <cstring>
#include <filesystem>

#include <gtest/gtest.h>

#include "d9d/base/check.h"

#include "tests/support/ranks.h"

namespace d9d::test::shared_file_test {
namespace {

// Files of this process that still have a name.
std::int64_t num_named() {
  std::int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with(cat("d9d-", ::getpid(), "-"))) ++count;
  }
  return count;
}

TEST(SharedFile, Is_zero_at_first_shared_by_all_ranks_and_has_no_name_afterwards) {
  constexpr std::int64_t kNumRanks = 3, kBytes = 5000;
  run_ranks(RankBackend::kGloo, kNumRanks, [&](World& world) {
    const auto ranks = world.communicator(group_of(world, "all"));
    const SharedFileResult opened = open_shared_file(*ranks, kBytes);
    ASSERT_NE(opened.file, nullptr) << opened.reason;
    EXPECT_GE(opened.file->num_bytes(), kBytes);
    for (std::int64_t i = 0; i < kBytes; ++i) ASSERT_EQ(opened.file->data()[i], std::byte{0});
    ranks->barrier();
    opened.file->data()[kBytes - kNumRanks + world.rank()] = std::byte(static_cast<unsigned char>(7 + world.rank()));
    ranks->barrier();
    for (std::int64_t rank = 0; rank < kNumRanks; ++rank) {
      EXPECT_EQ(opened.file->data()[kBytes - kNumRanks + rank], std::byte(static_cast<unsigned char>(7 + rank)));
    }
    EXPECT_EQ(num_named(), 0);
  });
}

TEST(SharedFile, That_does_not_fit_is_refused_on_all_ranks_with_the_reason) {
  run_ranks(RankBackend::kGloo, 2, [&](World& world) {
    const auto ranks = world.communicator(group_of(world, "all"));
    const SharedFileResult opened = open_shared_file(*ranks, std::int64_t{1} << 60);
    EXPECT_EQ(opened.file, nullptr);
    EXPECT_TRUE(opened.reason.starts_with("rank 0 gets /dev/shm: ")) << opened.reason;
    ranks->barrier();  // rank 0 has removed the name
    EXPECT_EQ(num_named(), 0);
  });
}

}  // namespace
}  // namespace d9d::test::shared_file_test
