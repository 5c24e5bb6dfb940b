#include "d9d/lr_scheduler/learning_rate_scheduler.h"

#include <gtest/gtest.h>

#include "d9d/lr_scheduler/lambda_scheduler.h"

namespace d9d::learning_rate_scheduler_test {
namespace {

// Written without the library's classes.
class Halving {
 public:
  double factor() const { return factor_; }
  void step() { factor_ /= 2; }
  nlohmann::ordered_json state() const { return factor_; }
  void load_state(const nlohmann::ordered_json& state) { factor_ = state.get<double>(); }

 private:
  double factor_ = 1;
};

struct WithoutState {
  double factor() const { return 1; }
  void step() {}
};

static_assert(LRSchedulerProtocol<Halving> && LRSchedulerProtocol<LambdaScheduler>);
static_assert(LRSchedulerProtocol<LearningRateScheduler>);
static_assert(!LRSchedulerProtocol<WithoutState>);

TEST(LearningRateScheduler, Holds_any_class_of_the_protocol_with_its_state) {
  LearningRateScheduler scheduler{Halving()};
  scheduler.step();
  scheduler.step();
  EXPECT_EQ(scheduler.factor(), 0.25);
  LearningRateScheduler resumed{Halving()};
  resumed.load_state(scheduler.state());
  resumed.step();
  EXPECT_EQ(resumed.factor(), 0.125);
}

}  // namespace
}  // namespace d9d::learning_rate_scheduler_test
