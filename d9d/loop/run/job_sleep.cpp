#include "d9d/loop/run/job_sleep.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <ATen/DeviceAccelerator.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/device/named_range.h"
#include "d9d/core/error/error_place.h"
#include "d9d/modules/gradient_reduction.h"

namespace d9d {
namespace {

// While it lives, communication may take init_timeout.
class LongTimeout {
 public:
  LongTimeout(const DistContext& context, const TimeoutConfig& timeout)
      : world_(*context.world()), before_(world_.timeout()) {
    world_.set_timeout(std::chrono::seconds(timeout.init_timeout));
  }
  ~LongTimeout() { world_.set_timeout(before_); }
  LongTimeout(const LongTimeout&) = delete;
  LongTimeout& operator=(const LongTimeout&) = delete;

 private:
  World& world_;
  const std::chrono::milliseconds before_;
};

std::vector<at::Tensor> tensors_of(const std::vector<std::shared_ptr<Module>>& stages) {
  std::vector<at::Tensor> tensors;
  for (const auto& stage : stages) {
    for (const auto& [name, parameter] : stage->named_parameters()) {
      tensors.push_back(parameter->stored());
      tensors.push_back(parameter->local());
      tensors.push_back(parameter->stored().grad());
    }
    for (const auto& [name, buffer] : stage->named_buffers()) tensors.push_back(buffer->local);
  }
  return tensors;
}

std::vector<at::Tensor> tensors_of(const std::map<std::string, DTensor>& state) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : state) tensors.push_back(tensor.local);
  return tensors;
}

std::vector<std::shared_ptr<GradientReduction>> reductions_of(const std::vector<std::shared_ptr<Module>>& stages) {
  std::vector<std::shared_ptr<GradientReduction>> reductions;
  for (const auto& stage : stages) {
    for (const auto& reduction : gradient_reductions(*stage)) reductions.push_back(reduction);
  }
  return reductions;
}

// Waits for the device first: memory of a side stream is free only then.
void free_cached_memory(c10::Device device) {
  if (device.is_cpu()) return;
  at::accelerator::synchronizeDevice(device.index());
  at::accelerator::emptyCache();
}

SleepTags common(const SleepTags& some, const SleepTags& others) {
  SleepTags both;
  std::ranges::set_intersection(some, others, std::inserter(both, both.end()));
  return both;
}

std::string text_of(const SleepTags& tags) {
  std::string text;
  for (const SleepTag tag : tags) text += cat(text.empty() ? "" : ", ", enum_name(tag));
  return cat("{", text, "}");
}

}  // namespace

JobSleep::JobSleep(const DistContext& context, OffloadList& parts, const std::vector<std::shared_ptr<Module>>& stages,
                   const TimeoutConfig& timeout)
    : context_(context), parts_(parts), stages_(stages), timeout_(timeout) {}

void JobSleep::add_stages() {
  add([this] { return tensors_of(stages_); });
  // These sleep before the tensors above, which view their memory.
  for (const auto& reduction : reductions_of(stages_)) {
    if (auto* const part = dynamic_cast<Offloadable*>(reduction.get())) memberships_.push_back(parts_.add(*part));
  }
}

void JobSleep::add(std::function<std::vector<at::Tensor>()> tensors) {
  memberships_.push_back(parts_.add(tensors_.emplace_back(std::move(tensors))));
}

void JobSleep::add_optimizer(const Optimizer& optimizer) {
  add([&optimizer] { return tensors_of(optimizer.state_dict()); });
}

void JobSleep::add_averages(const Ema& ema) {
  add([&ema] { return tensors_of(ema.state_dict()); });
}

void JobSleep::check_between_steps(const char* what, const std::string& in_use, std::int64_t rank) {
  D9D_CHECK(in_use.empty(), StateError, "[loop::trainer] expected to ", what, " between steps, got a call while ",
            in_use, " (rank ", rank,
            "). Call it from a handler of train.step.post, or outside of train() and infer().");
}

void JobSleep::agree(const char* what, const SleepTags& tags) const {
  const DeviceMesh& ranks = context_.mesh(MeshDomain::kBatch);
  const nlohmann::json own = {{"tags", text_of(tags)}, {"in_use", parts_.in_use().value_or("")}};
  const std::vector<nlohmann::json> all = all_gather_object(own, ranks);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string theirs = all[i]["tags"];
    check_between_steps(what, all[i]["in_use"], ranks.ranks()[i]);
    D9D_CHECK(theirs == all[0]["tags"], StateError, "[loop::trainer] expected to ", what,
              " with the same tags on all ranks, got ", theirs, " on rank ", ranks.ranks()[i], " and ",
              all[0]["tags"].get<std::string>(), " on rank ", ranks.ranks()[0], ".");
  }
}

void JobSleep::sleep(const SleepTags& tags, const Around& around) {
  SleepTags due;
  std::ranges::set_difference(tags, parts_.asleep(), std::inserter(due, due.end()));
  if (!context_.world()->is_connected()) {
    D9D_CHECK(due.empty(), StateError, "[loop::trainer] expected to put ", text_of(due), " to sleep before comms, ",
              "got a call while comms sleeps. Pass all tags in one call.");
    return;
  }
  const LongTimeout timeout(context_, timeout_);
  agree("sleep", tags);
  if (due.empty()) return;
  std::optional<OffloadList::InUse> in_use(std::in_place, parts_, "the job goes to sleep");
  around(due, [&] {
    offload(due);
    in_use.reset();
  });
}

void JobSleep::offload(const SleepTags& due) {
  const NamedRange range("sleep");
  try {
    agreed(context_.mesh(MeshDomain::kBatch), [&] {
      with_error_place("going to sleep", [&] {
        for (const auto& reduction : reductions_of(stages_)) reduction->close();
        parts_.offload(due, {.dist_context = context_, .options = {}});
      });
    });
  } catch (const std::exception&) {
    parts_.onload(due, {.dist_context = context_});
    throw;
  }
  SleepTags all = parts_.asleep();
  all.insert(due.begin(), due.end());
  parts_.set_asleep(std::move(all));
  free_cached_memory(context_.device());
  if (due.contains(SleepTag::kComms)) context_.world()->disconnect();
}

void JobSleep::wake(const SleepTags& tags, const Around& around) {
  const SleepTags due = common(tags, parts_.asleep());
  const LongTimeout timeout(context_, timeout_);
  if (context_.world()->is_connected()) {
    agree("wake", tags);
  } else {
    check_between_steps("wake", parts_.in_use().value_or(""), context_.rank());
  }
  if (due.empty()) return;
  std::optional<OffloadList::InUse> in_use(std::in_place, parts_, "the job wakes");
  around(due, [&] {
    onload(due);
    in_use.reset();
  });
}

void JobSleep::onload_parts(const SleepTags& due) {
  with_error_place("waking", [&] { parts_.onload(due, {.dist_context = context_}); });
}

void JobSleep::onload(const SleepTags& due) {
  const NamedRange range("wake");
  World& world = *context_.world();
  const bool connects = due.contains(SleepTag::kComms) && !world.is_connected();
  if (connects) world.reconnect();
  try {
    if (world.is_connected()) {
      agreed(context_.mesh(MeshDomain::kBatch), [&] { onload_parts(due); });
    } else {
      onload_parts(due);
    }
  } catch (const std::exception&) {
    sleep_on(due, /*disconnects=*/connects);
    throw;
  }
  SleepTags rest;
  std::ranges::set_difference(parts_.asleep(), due, std::inserter(rest, rest.end()));
  parts_.set_asleep(std::move(rest));
}

void JobSleep::sleep_on(const SleepTags& due, bool disconnects) {
  try {
    parts_.offload(due, {.dist_context = context_, .options = {}});
  } catch (const std::exception&) {  // the error of waking is the one to report; the part stays awake
  }
  try {
    free_cached_memory(context_.device());
    if (disconnects) context_.world()->disconnect();
  } catch (const std::exception&) {  // of the device or of another rank, after which no rank goes on
  }
}

}  // namespace d9d
