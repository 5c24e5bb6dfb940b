// Events, trackers, metrics and the start of a program.
#include <memory>

#include "d9d/core/launch/launch.h"
#include "d9d/loop/task/event_bus.h"
#include "d9d/metrics/aggregates.h"
#include "d9d/metrics/compose_metric.h"
#include "d9d/tracker/tracker.h"

struct Evaluated {
  double accuracy = 0;
};
struct Saved {};
inline constexpr d9d::Event<Evaluated> kEvaluated{"test.evaluated"};

void use(d9d::EventBus& events) {
#ifdef handler_of_another_event
  // expect: a handler of an Event<Context> takes `const Context&`: this one takes another event's context
  events.subscribe(kEvaluated, [](const Saved&) {});
#elif defined handler_that_cannot_be_copied
  // expect: a handler of an event must be copyable: capture a std::shared_ptr or a reference
  events.subscribe(kEvaluated, [owned = std::make_unique<int>()](const Evaluated&) {});
#else
  events.subscribe(kEvaluated, [](const Evaluated&) {});
#endif
#ifdef trigger_with_another_context
  // expect: cannot convert
  // expect note: Evaluated
  events.trigger(kEvaluated, Saved());
#else
  events.trigger(kEvaluated, {.accuracy = 0.9});
#endif
}

struct Counter {
  void count(const Evaluated&) { ++number; }
  static constexpr auto handlers() { return std::tuple(d9d::on(kEvaluated, &Counter::count)); }
#ifdef handler_whose_state_is_not_const
  // expect: an attached object with state needs both `nlohmann::json state() const` and
  nlohmann::json state() { return number; }
#else
  nlohmann::json state() const { return number; }
#endif
#ifndef handler_whose_state_is_never_loaded
  // expect: an attached object with state needs both `nlohmann::json state() const` and
  void load_state(const nlohmann::json& state) { number = state; }
#endif
  int number = 0;
};
inline void attach(d9d::EventBus& events, Counter& counter) { events.attach("counter", counter); }

struct Run : d9d::TrackerRun {
  ~Run() override { close_in_destructor(); }
#ifndef tracker_run_without_write
  // expect: invalid new-expression of abstract class type ‘Run’
  // expect note: do_write
  void do_write(const d9d::TrackerPoint& point, const d9d::TrackerValue& value) override;
#endif
};

struct Tracker : d9d::Tracker {
#ifdef tracker_with_another_signature
  // expect: marked ‘override’, but does not override
  std::unique_ptr<d9d::TrackerRun> open(const d9d::RunInfo& info) override;
#else
  std::unique_ptr<d9d::TrackerRun> open(const d9d::RunInfo&) const override { return std::make_unique<Run>(); }
#endif
};

struct Accuracy : d9d::Metric {
  at::Tensor compute() const override;
#ifndef metric_whose_sums_no_checkpoint_has
  // expect: cannot declare variable ‘accuracy’ to be of abstract type ‘Accuracy’
  // expect note: accumulators
  std::vector<d9d::Accumulator*> accumulators() override;
#endif
};

Accuracy accuracy;

void update(d9d::ComposeMetric& scores, const at::Tensor& values) {
#ifdef metric_of_others_is_updated
  // expect: a ComposeMetric has no update(): update its children
  scores.update(values);
#else
  d9d::metric_at<d9d::SumMetric>(scores.children(), "sum").update(values);
#endif
}

struct Config {
  d9d::LaunchConfig launch = {};
#ifdef config_without_mesh
  // expect: launch<Config>: Config needs the members `d9d::LaunchConfig launch` and `d9d::DeviceMeshParameters mesh`
  std::int64_t mesh = 1;
#else
  d9d::DeviceMeshParameters mesh = {};
#endif
#ifndef config_without_fields
  // expect: launch<Config>: Config must list its members in `static constexpr auto fields()`
  static constexpr auto fields() {
    return d9d::record<Config>(d9d::defaulted("launch", &Config::launch), d9d::defaulted("mesh", &Config::mesh));
  }
#endif
};

#ifdef program_without_context
// expect: launch<Config>: the program must be callable with (const Config&, d9d::DistContext&)
void train(const Config& config);
#else
void train(const Config& config, d9d::DistContext& context);
#endif

int run(int argc, char** argv) { return d9d::launch<Config>(argc, argv, train); }
