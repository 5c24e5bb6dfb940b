// The parts of a job that give memory back while the job sleeps. They join when they are built, and leave when they are
// destroyed.
//
// Example
//   OffloadList parts;
//   OffloadHooks links([&] { executor.close(); });                    // opened again at the next use
//   const OffloadList::Membership membership = parts.add(links, {SleepTag::kTensorStates, SleepTag::kComms});
//   parts.offload({SleepTag::kTensorStates}, {.dist_context = context, .options = {}});
//   parts.set_asleep({SleepTag::kTensorStates});
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "d9d/core/offload/offload.h"

namespace d9d {

// An Offloadable made of two functions, for a part that frees memory and makes it anew, such as buffers without values.
class OffloadHooks final : public Offloadable {
 public:
  explicit OffloadHooks(
      std::function<void()> offload, std::function<void()> onload = [] {})
      : offload_(std::move(offload)), onload_(std::move(onload)) {}

  void offload(const OffloadContext& context) override;
  void onload(const OnloadContext& context) override;
  [[nodiscard]] bool is_offloaded() const override { return is_offloaded_; }

 private:
  std::function<void()> offload_;
  std::function<void()> onload_;
  bool is_offloaded_ = false;
};

// An Offloadable of the tensors that a function returns when the job goes to sleep (offload_tensors).
class OffloadTensors final : public Offloadable {
 public:
  explicit OffloadTensors(std::function<std::vector<at::Tensor>()> tensors) : tensors_(std::move(tensors)) {}

  void offload(const OffloadContext& context) override;
  void onload(const OnloadContext& context) override;
  [[nodiscard]] bool is_offloaded() const override { return is_offloaded_; }

 private:
  std::function<std::vector<at::Tensor>()> tensors_;
  OffloadedTensors asleep_;
  bool is_offloaded_ = false;
};

// The parts of one job. Local; all ranks add their parts in the same order.
class OffloadList {
  struct Part {
    Offloadable* part;
    SleepTags tags;
  };
  using Parts = std::list<Part>;

 public:
  OffloadList() = default;
  OffloadList(const OffloadList&) = delete;
  OffloadList& operator=(const OffloadList&) = delete;

  // Ends the membership of a part when it is destroyed, also after the list is.
  class Membership {
   public:
    Membership() = default;
    Membership(Membership&& other) noexcept { swap(other); }
    Membership& operator=(Membership&& other) noexcept {
      swap(other);
      return *this;
    }
    Membership(const Membership&) = delete;
    Membership& operator=(const Membership&) = delete;
    ~Membership();

   private:
    friend class OffloadList;
    Membership(const std::shared_ptr<Parts>& parts, Parts::iterator part) : parts_(parts), part_(part) {}
    void swap(Membership& other) noexcept {
      std::swap(parts_, other.parts_);
      std::swap(part_, other.part_);
    }
    std::weak_ptr<Parts> parts_;
    Parts::iterator part_;
  };

  // part: borrowed until the membership ends. tags: the part sleeps while any of these sleeps. Throws StateError while
  // the job sleeps.
  [[nodiscard]] Membership add(Offloadable& part, SleepTags tags = default_sleep_tags());

  // Both call all parts even if one throws, since some wait for other ranks, and then throw the first error.
  // Offloads the awake parts that have one of `due`, those that were added last first.
  void offload(const SleepTags& due, const OffloadContext& context);
  // Onloads the parts that have no tag which sleeps besides `due`, those that were added first first. After an error it
  // may be called again, and onloads the parts that still sleep.
  void onload(const SleepTags& due, const OnloadContext& context);
  // Sets the tags that sleep, once all ranks have done their part.
  void set_asleep(SleepTags tags) { asleep_ = std::move(tags); }
  [[nodiscard]] const SleepTags& asleep() const { return asleep_; }
  // Throws StateError unless all parts are awake. what: "train a step".
  void check_awake(const std::string& what) const;

  // While it lives, tensors of the parts are in use, so the job cannot sleep. why: "a step runs".
  class InUse {
   public:
    InUse(OffloadList& list, std::string why) : list_(list) { list_.in_use_ = std::move(why); }
    ~InUse() { list_.in_use_.reset(); }
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    OffloadList& list_;
  };
  [[nodiscard]] const std::optional<std::string>& in_use() const { return in_use_; }

 private:
  const std::shared_ptr<Parts> parts_ = std::make_shared<Parts>();
  SleepTags asleep_;
  std::optional<std::string> in_use_;
};

}  // namespace d9d
