#include "d9d/loop/task/event_bus.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::event_bus_test {
namespace {
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

struct Number {
  int value;
};
constexpr Event<Number> kNumber{"test.number"};
constexpr Event<Number> kOther{"test.other"};

struct Recorder {
  auto handler(const std::string& name) {
    return [this, name](const Number& number) { log.push_back(cat(name, " ", number.value)); };
  }
  std::vector<std::string> log;
};

TEST(EventBus, Runs_handlers_in_the_order_in_which_they_subscribed) {
  EventBus events;
  Recorder recorder;
  events.subscribe(kNumber, recorder.handler("first"));
  events.subscribe(kOther, recorder.handler("other"));
  events.subscribe(kNumber, recorder.handler("second"));
  events.trigger(kNumber, {1});
  events.trigger(kNumber, {2});
  EXPECT_THAT(recorder.log, ElementsAre("first 1", "second 1", "first 2", "second 2"));
}

TEST(EventBus, Does_not_call_a_handler_whose_subscription_has_ended) {
  Subscription outlives;
  {
    EventBus events;
    Recorder recorder;
    outlives = events.subscribe(kNumber, recorder.handler("first"));
    Subscription second = events.subscribe(kNumber, recorder.handler("second"));
    Subscription self;
    self = events.subscribe(kNumber, [&](const Number& number) {
      recorder.log.push_back(cat("once ", number.value));
      self.end();
    });
    events.trigger(kNumber, {1});
    second.end();
    second.end();
    events.trigger(kNumber, {2});
    EXPECT_THAT(recorder.log, ElementsAre("first 1", "second 1", "once 1", "first 2"));
    outlives.end();
    EXPECT_FALSE(events.has_handlers(kNumber));
    events.subscribe(kNumber, recorder.handler("third"));
    EXPECT_TRUE(events.has_handlers(kNumber));
  }
  outlives.end();
}

TEST(EventBus, Ends_the_subscription_of_a_handler_that_comes_later_in_the_same_event) {
  EventBus events;
  Recorder recorder;
  Subscription later;
  events.subscribe(kNumber, [&](const Number&) { later.end(); });
  later = events.subscribe(kNumber, recorder.handler("later"));
  events.trigger(kNumber, {1});
  EXPECT_THAT(recorder.log, IsEmpty());
}

TEST(EventBus, Triggers_events_that_nobody_waits_for) {
  EventBus events;
  EXPECT_NO_THROW(events.trigger(kNumber, {1}));
}

TEST(EventBus, Knows_an_event_by_its_id) {
  EventBus events;
  Recorder recorder;
  events.subscribe(kNumber, recorder.handler("number"));
  events.trigger(Event<Number>{std::string_view("test.number")}, {3});
  EXPECT_THAT(recorder.log, ElementsAre("number 3"));
}

TEST(EventBus, Reaches_handlers_that_subscribe_while_the_event_runs) {
  EventBus events;
  Recorder recorder;
  bool is_first = true;
  events.subscribe(kNumber, [&](const Number&) {
    for (int i = 0; std::exchange(is_first, false) && i < 100; ++i) events.subscribe(kNumber, recorder.handler("late"));
  });
  events.trigger(kNumber, {1});
  EXPECT_THAT(recorder.log, ElementsAre("late 1"));
}

TEST(EventBus, Names_the_event_whose_handler_throws_and_runs_no_handler_after_it) {
  EventBus events;
  Recorder recorder;
  events.subscribe(kNumber, [](const Number&) { throw IoError("[test] the disk is full."); });
  events.subscribe(kNumber, recorder.handler("after"));
  EXPECT_THAT([&] { events.trigger(kNumber, {1}); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("test.number"), HasSubstr("the disk is full"))));
  EXPECT_THAT(recorder.log, IsEmpty());
  try {
    events.trigger(kNumber, {1});
  } catch (const StateError& error) {
    EXPECT_THROW(std::rethrow_if_nested(error), IoError);
  }
}

TEST(EventBus, Names_an_error_of_libtorch_without_its_stack) {
  EventBus events;
  events.subscribe(kNumber, [](const Number&) { (void)at::ones({2}).view({3}); });
  EXPECT_THAT([&] { events.trigger(kNumber, {1}); },
              ThrowsMessage<StateError>(AllOf(HasSubstr("test.number failed: shape '[3]' is invalid"),
                                              Not(HasSubstr("frame #")), Not(HasSubstr("\n")))));
}

TEST(EventBus, Surrounds_a_body_and_leaves_out_the_end_when_it_throws) {
  EventBus events;
  Recorder recorder;
  events.subscribe(kNumber, recorder.handler("before"));
  events.subscribe(kOther, recorder.handler("after"));
  events.run_between(kNumber, kOther, {1}, [&] { recorder.log.emplace_back("body"); });
  EXPECT_THAT(recorder.log, ElementsAre("before 1", "body", "after 1"));
  recorder.log.clear();
  EXPECT_THROW(events.run_between(kNumber, kOther, {1}, [] { throw ConfigError("[test]"); }), ConfigError);
  EXPECT_THAT(recorder.log, ElementsAre("before 1"));
}

TEST(EventBus, Refuses_two_contexts_for_one_id) {
  EventBus events;
  events.subscribe(kNumber, [](const Number&) {});
  const Event<std::string> same{"test.number"};
  EXPECT_THROW(events.subscribe(same, [](const std::string&) {}), InternalError);
  EXPECT_THROW(events.trigger(same, "text"), InternalError);
}

// Counts, and writes down the order of two of its members.
struct Counter {
  void first(const Number& event) { sum += event.value; }
  void second(const Number& /*event*/) { order += sum == 0 ? "empty" : "full"; }
  static constexpr auto handlers() { return std::tuple(on(kNumber, &Counter::first), on(kNumber, &Counter::second)); }
  nlohmann::json state() const { return sum; }
  void load_state(const nlohmann::json& state) { sum = state; }
  int sum = 0;
  std::string order;
};

struct Stateless {
  void count(const Number& /*event*/) { ++calls; }
  static constexpr auto handlers() { return std::tuple(on(kNumber, &Stateless::count)); }
  int calls = 0;
};

TEST(EventBus, Subscribes_the_members_that_an_object_lists) {
  EventBus events;
  Counter counter;
  Stateless stateless;
  auto subscriptions = events.attach("counter", counter);
  events.attach("stateless", stateless);
  events.trigger(kNumber, {2});
  EXPECT_EQ(counter.sum, 2);
  EXPECT_EQ(counter.order, "full");
  EXPECT_EQ(events.states(), nlohmann::json({{"counter", 2}}));
  subscriptions.at(1).end();
  events.trigger(kNumber, {3});
  EXPECT_EQ(counter.sum, 5);
  EXPECT_EQ(counter.order, "full");
  EXPECT_EQ(stateless.calls, 2);
  Counter other;
  EXPECT_THAT([&] { events.attach("counter", other); }, ThrowsMessage<ConfigError>(HasSubstr("'counter' twice")));
}

TEST(EventBus, Tells_of_saved_states_that_nobody_took) {
  EventBus events;
  Counter counter;
  events.load_states({{"counter", counter.state()}, {"gone", 3}});
  EXPECT_THAT(events.untaken_states(), ElementsAre("counter", "gone"));
  events.attach("counter", counter);
  EXPECT_THAT(events.untaken_states(), ElementsAre("gone"));
  EXPECT_EQ(events.states().at("gone"), 3) << "it stays for a program that takes it";
}

TEST(EventBus, Gives_objects_their_saved_states_whenever_they_are_attached) {
  EventBus events;
  Counter before, after;
  events.attach("before", before);
  events.load_states({{"before", 3}, {"after", 4}, {"of another program", 5}});
  events.attach("after", after);
  EXPECT_EQ(before.sum, 3);
  EXPECT_EQ(after.sum, 4);
  EXPECT_EQ(events.states(), nlohmann::json({{"before", 3}, {"after", 4}, {"of another program", 5}}));
}

}  // namespace
}  // namespace d9d::event_bus_test
