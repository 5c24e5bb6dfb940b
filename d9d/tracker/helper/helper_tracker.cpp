#include "d9d/tracker/helper/helper_tracker.h"

#include <limits>
#include <utility>

#include "d9d/base/config/record_json.h"
#include "d9d/tracker/run_info.h"

namespace d9d {
namespace {

using Json = nlohmann::ordered_json;

HelperProgram program_of(const HelperTracker::Config& config, const HelperLimits& limits) {
  return std::visit(
      [&]<class T>(const T& one) {
        return HelperProgram{.provider = std::string(T::kTag.value),
                             .python = one.python.value_or(D9D_TRACKER_PYTHON).string(),
                             .config = write_record(one),
                             .for_opening = limits.for_opening};
      },
      config);
}

class HelperRun final : public TrackerRun {
 public:
  HelperRun(HelperFeed::Parts parts, Json state, std::int64_t last_step)
      : feed_(std::move(parts)), state_(std::move(state)), last_step_(last_step) {}
  ~HelperRun() override { close_in_destructor(); }

  [[nodiscard]] Json state() const override {
    Json state = state_;
    state.update(state_of_last_step(last_step_));
    return state;
  }

 private:
  void do_write(const TrackerPoint& point, const TrackerValue& value) override {
    last_step_ = point.step;
    feed_.add(point, value);
  }
  void do_flush() override { feed_.hurry(); }
  void do_close(RunOutcome outcome) override { feed_.close(outcome); }

  HelperFeed feed_;
  Json state_;  // the run's id
  std::int64_t last_step_;
};

}  // namespace

HelperTracker::HelperTracker(const Config& config, const HelperLimits& limits)
    : program_(program_of(config, limits)), limits_(limits), process_(program_.start()) {}

std::unique_ptr<TrackerRun> HelperTracker::open(const RunInfo& info) const {
  std::unique_ptr<LineProcess> process = process_ != nullptr ? std::move(process_) : program_.start();
  const char* const id = program_.provider == "aim" ? "restart_hash" : "run_id";
  const bool resumes = info.resume_state.is_object() && info.resume_state.contains(id);
  Json request = {{"name", info.name},
                  {"description", info.description},
                  {"hparams", info.hparams},
                  {"resume_state", resumes ? info.resume_state : nullptr}};
  Json opened = program_.open(*process, request);
  if (opened["warning"].is_string()) {
    info.log.warning("the tracker '", program_.provider, "' ", opened["warning"].get<std::string>());
  }
  request["resume_state"] = opened["state"];
  const Json header = {{"provider", program_.provider}, {"config", program_.config}, {"open", request}};
  const auto restart = [program = program_, request]() mutable {
    // The steps of the spool are all before those that follow.
    request["resume_state"]["last_step"] = std::numeric_limits<std::int64_t>::max();
    auto another = program.start();
    (void)program.open(*another, request);
    return another;
  };
  return std::make_unique<HelperRun>(
      HelperFeed::Parts{
          .process = std::move(process),
          .restart = restart,
          .spool = {opened["spool"].get<std::string>(), header.dump(-1, ' ', false, Json::error_handler_t::replace)},
          .log = info.log,
          .name = program_.provider,
          .limits = limits_},
      opened["state"], resumed_last_step(info).value_or(kNoStep));
}

}  // namespace d9d
