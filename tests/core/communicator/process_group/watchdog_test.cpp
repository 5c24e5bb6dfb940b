#include "d9d/core/communicator/process_group/watchdog.h"

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "d9d/base/check.h"
#include "d9d/core/communicator/process_group/gloo_group.h"
#include "d9d/core/communicator/process_group/process_group_backend.h"

namespace d9d::test::watchdog_test {
namespace {

// On CUDA an interruption waits for the device, which may wait for what another part of the program does when its own
// group has failed.
TEST(Watchdog, All_groups_know_of_a_failure_of_the_job_before_one_is_interrupted) {
  std::vector<std::shared_ptr<Communicator>> groups;
  std::vector<bool> all_knew;
  const auto have_all_failed = [&] {
    for (const auto& group : groups) {
      try {
        group->throw_if_failed();
        return false;
      } catch (const CommunicationError&) {
      }
    }
    return true;
  };
  ProcessGroupBackend backend({.store = c10::make_intrusive<c10d::HashStore>(),
                               .rank = 0,
                               .world_size = 1,
                               .make_group = [&](const auto& store, const auto& options) {
                                 ProcessGroup group = gloo_groups("127.0.0.1")(store, options);
                                 group.interrupt = [&, inner = group.interrupt] {
                                   all_knew.push_back(have_all_failed());
                                   inner();
                                 };
                                 return group;
                               }});
  for (const Traffic traffic : {Traffic::kCompute, Traffic::kParameters, Traffic::kGradients}) {
    groups.push_back(
        backend.connect({.name = "alone", .ranks = {0}, .index = 0, .traffic = traffic}, std::chrono::seconds(10)));
  }
  backend.abort("the toy breaks");
  EXPECT_EQ(all_knew, std::vector<bool>(groups.size(), true));
}

}  // namespace
}  // namespace d9d::test::watchdog_test
