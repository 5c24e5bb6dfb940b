// Puts a job to sleep between steps and wakes it, on all ranks alike.
//
// Example
//   JobSleep sleep(context, offloads, stages, config.timeout);
//   sleep.add_stages();
//   sleep.add_optimizer(optimizer);
//   sleep.sleep({SleepTag::kTensorStates}, around);
//   ...                                                 // another program uses the devices
//   sleep.wake({SleepTag::kTensorStates}, around);
//
// Going to sleep, in this order: all ranks agree; what needs other ranks is closed (messages of pipelines, mappings of
// other ranks' memory); tensors move to the host; memory that the allocator caches is freed; communicators disconnect.
// Waking is the reverse.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "d9d/core/dist_context/dist_context.h"
#include "d9d/core/offload/offload_list.h"
#include "d9d/loop/config/trainer_config.h"
#include "d9d/modules/module.h"
#include "d9d/optim/ema.h"
#include "d9d/optim/optimizer.h"

namespace d9d {

class JobSleep {
 public:
  // Runs `body`, in which `due` go to sleep or wake, and may run code before and after it.
  using Around = std::function<void(const SleepTags& due, const std::function<void()>& body)>;

  // All arguments are borrowed.
  JobSleep(const DistContext& context, OffloadList& parts, const std::vector<std::shared_ptr<Module>>& stages,
           const TimeoutConfig& timeout);
  // Add the tensors of the stages, the state of the optimiser and averages of the weights, which are borrowed, to
  // `parts`.
  void add_stages();
  void add_optimizer(const Optimizer& optimizer);
  void add_averages(const Ema& ema);

  // Collective. Do what TrainerBase::sleep() and wake() say. `around` is called unless no tag is due.
  void sleep(const SleepTags& tags, const Around& around);
  void wake(const SleepTags& tags, const Around& around);

 private:
  void add(std::function<std::vector<at::Tensor>()> tensors);
  // Collective. Throws StateError on all ranks unless all pass the same tags, between steps.
  void agree(const char* what, const SleepTags& tags) const;
  static void check_between_steps(const char* what, const std::string& in_use, std::int64_t rank);
  void offload(const SleepTags& due);
  void onload(const SleepTags& due);
  void onload_parts(const SleepTags& due);
  // Puts back to sleep what a failed wake() has woken, as far as possible. Collective if `disconnects`.
  void sleep_on(const SleepTags& due, bool disconnects);

  const DistContext& context_;
  OffloadList& parts_;
  const std::vector<std::shared_ptr<Module>>& stages_;
  const TimeoutConfig& timeout_;
  std::list<OffloadTensors> tensors_;
  std::vector<OffloadList::Membership> memberships_;
};

}  // namespace d9d
