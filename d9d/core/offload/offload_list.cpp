#include "d9d/core/offload/offload_list.h"

#include <algorithm>
#include <exception>
#include <iterator>

#include "d9d/base/check.h"

namespace d9d {
namespace {

bool have_common(const SleepTags& some, const SleepTags& others) {
  return std::ranges::any_of(some, [&](SleepTag tag) { return others.contains(tag); });
}

// The first error of several pieces of work, all of which are done.
class FirstError {
 public:
  template <class Work>
  void keep_of(const Work& work) {
    try {
      work();
    } catch (const std::exception&) {
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

}  // namespace

void OffloadHooks::offload(const OffloadContext& /*context*/) {
  offload_();
  is_offloaded_ = true;
}

void OffloadHooks::onload(const OnloadContext& /*context*/) {
  onload_();
  is_offloaded_ = false;
}

void OffloadTensors::offload(const OffloadContext& context) {
  asleep_ = offload_tensors(tensors_(), context.options);
  is_offloaded_ = true;
}

void OffloadTensors::onload(const OnloadContext& /*context*/) {
  onload_tensors(asleep_);
  is_offloaded_ = false;
}

OffloadList::Membership::~Membership() {
  if (const auto parts = parts_.lock()) parts->erase(part_);
}

OffloadList::Membership OffloadList::add(Offloadable& part, SleepTags tags) {
  check_awake("add a part");
  return {parts_, parts_->insert(parts_->end(), {.part = &part, .tags = std::move(tags)})};
}

void OffloadList::offload(const SleepTags& due, const OffloadContext& context) {
  FirstError error;
  for (auto each = parts_->rbegin(); each != parts_->rend(); ++each) {
    if (!have_common(each->tags, due) || each->part->is_offloaded()) continue;
    error.keep_of([&] { each->part->offload(context); });
  }
  error.rethrow();
}

void OffloadList::onload(const SleepTags& due, const OnloadContext& context) {
  SleepTags others;
  std::ranges::set_difference(asleep_, due, std::inserter(others, others.end()));
  FirstError error;
  for (const Part& each : *parts_) {
    if (!each.part->is_offloaded() || have_common(each.tags, others)) continue;
    error.keep_of([&] { each.part->onload(context); });
  }
  error.rethrow();
}

void OffloadList::check_awake(const std::string& what) const {
  if (asleep_.empty()) return;
  std::string names;
  for (const SleepTag tag : asleep_) names += cat(names.empty() ? "" : " and ", enum_name(tag));
  throw StateError(cat("[core::offload] expected a job that is awake to ", what, ", got one whose ", names,
                       " sleep. Call wake() first."));
}

}  // namespace d9d
