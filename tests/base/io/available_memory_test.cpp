#include "d9d/base/io/available_memory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace d9d::available_memory_test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// A system of 64 GiB in a folder.
class AvailableMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = fs::path(::testing::TempDir()) / "d9d" / test->test_suite_name() / test->name();
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:       99999999 kB\nMemAvailable:   67108864 kB\n");
  }
  void TearDown() override { fs::remove_all(root_); }

  void write(const fs::path& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  // A group of version 2, of which `cached` is page cache.
  void group(const fs::path& path, const std::string& limit, std::int64_t used, std::int64_t cached = 0) const {
    write(path / "memory.max", limit + "\n");
    write(path / "memory.current", std::to_string(used) + "\n");
    write(path / "memory.stat", "anon 5\ninactive_file " + std::to_string(cached) + "\nactive_file 0\n");
  }
  std::int64_t available() const { return available_memory(root_); }

  fs::path root_;
};

TEST_F(AvailableMemory, Is_the_system_s_without_control_groups) { EXPECT_EQ(available(), 64 * kGiB); }

TEST_F(AvailableMemory, Is_what_the_limit_of_a_nested_group_leaves) {
  write("proc/self/cgroup", "0::/system.slice/job_7/step_0\n");
  write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  group("sys/fs/cgroup/system.slice", "max", 9 * kGiB);
  group("sys/fs/cgroup/system.slice/job_7/step_0", std::to_string(16 * kGiB), 6 * kGiB, 2 * kGiB);
  EXPECT_EQ(available(), 12 * kGiB);
  group("sys/fs/cgroup/system.slice/job_7", std::to_string(8 * kGiB), 6 * kGiB);  // the group around it leaves less
  EXPECT_EQ(available(), 2 * kGiB);
}

TEST_F(AvailableMemory, Is_what_the_limit_of_a_group_of_version_1_leaves) {
  write("proc/self/cgroup", "9:name=systemd:/\n4:memory:/slurm/uid_0/job_7\n3:cpuset:/\n0::/\n");
  write("proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
        "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
  const fs::path job = "sys/fs/cgroup/memory/slurm/uid_0/job_7";
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1000\n");
  write(job / "memory.limit_in_bytes", std::to_string(10 * kGiB));
  write(job / "memory.usage_in_bytes", std::to_string(4 * kGiB));
  write(job / "memory.stat",
        "inactive_file 7\ntotal_inactive_file " + std::to_string(kGiB) + "\ntotal_active_file 0\n");
  EXPECT_EQ(available(), 7 * kGiB);
}

// A container without a namespace of groups sees its own group at the mount, and the path outside of it.
TEST_F(AvailableMemory, Is_what_the_limit_of_a_container_leaves) {
  write("proc/self/cgroup", "0::/docker/abc/inner\n");
  write("proc/self/mountinfo", "30 24 0:26 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n");
  group("sys/fs/cgroup", std::to_string(20 * kGiB), 2 * kGiB);
  EXPECT_EQ(available(), 18 * kGiB);
  group("sys/fs/cgroup/inner", std::to_string(5 * kGiB), 2 * kGiB);
  EXPECT_EQ(available(), 3 * kGiB);
  write("proc/self/cgroup", "0::/../elsewhere\n");
  EXPECT_EQ(available(), 18 * kGiB);
}

TEST_F(AvailableMemory, Is_none_where_a_group_has_more_than_its_limit) {
  write("proc/self/cgroup", "0::/\n");
  write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  group("sys/fs/cgroup", std::to_string(kGiB), 3 * kGiB);
  EXPECT_EQ(available(), 0);
}

TEST_F(AvailableMemory, Of_this_machine_is_some) { EXPECT_GT(available_memory(), 0); }

}  // namespace
}  // namespace d9d::available_memory_test
