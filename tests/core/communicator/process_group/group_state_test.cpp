#include "d9d/core/communicator/process_group/group_state.h"

#include <future>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace d9d::test::group_state_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// An operation that ends when end() is called.
class Operation : public c10d::Work {
 public:
  void end() { finish(); }
};

// A message, as Gloo has them: wait() does not look at its timeout, and abort() makes it return false.
class Message : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    aborted_.get_future().wait();
    return false;
  }
  void abort() override { aborted_.set_value(); }

 private:
  std::promise<void> aborted_;
};

GroupState group() {
  return {"key", {.name = "all", .ranks = {0, 1}}, {.backend = nullptr, .interrupt = [] {}}};
}

TEST(GroupState, Waits_longer_than_it_takes_to_look_for_a_failure) {
  GroupState state = group();
  const auto work = c10::make_intrusive<Operation>();
  const auto ended = std::async(std::launch::async, [&] {
    try {  // as long as two looks
      (void)c10::make_intrusive<Operation>()->wait(std::chrono::milliseconds(2100));
    } catch (const c10::Error&) {
      work->end();
    }
  });
  EXPECT_TRUE(state.wait(*work));
  state.fail({.reason = "the test is over"});
}

TEST(GroupState, Ends_an_operation_that_a_failure_of_the_group_does_not_end) {
  GroupState state = group();
  state.fail({.reason = "rank 1 has ended"});
  EXPECT_THAT([&] { (void)state.wait(*c10::make_intrusive<Operation>()); },
              ThrowsMessage<std::runtime_error>(HasSubstr("a connection of the group closed")));
}

TEST(GroupState, Passes_errors_of_operations_on) {
  class Failing : public c10d::Work {
   public:
    Failing() { finish(std::make_exception_ptr(std::runtime_error("reset by peer"))); }
  };
  GroupState state = group();
  EXPECT_THAT([&] { (void)state.wait(*c10::make_intrusive<Failing>()); },
              ThrowsMessage<std::runtime_error>(HasSubstr("reset by peer")));
  state.fail({.reason = "the test is over"});
}

TEST(GroupState, Ends_messages_when_the_group_fails) {
  GroupState state = group();
  const auto before = c10::make_intrusive<Message>();
  state.abort_on_failure(before);
  auto waits = std::async(std::launch::async, [&] { return before->wait(std::chrono::milliseconds(0)); });
  state.fail({.reason = "rank 1 has ended"});
  EXPECT_FALSE(waits.get());
  const auto after = c10::make_intrusive<Message>();
  state.abort_on_failure(after);
  EXPECT_FALSE(after->wait(std::chrono::milliseconds(0)));
}

}  // namespace
}  // namespace d9d::test::group_state_test
