// The two streams of a GPU on which composed computations run at once, and their order.
//
// Example
//   const Lanes lanes(world);
//   {
//     const Lanes::Joined joined(&lanes);           // neither stream is ahead of the other
//     lanes.run(1, [&] { backward(); });            // on the second stream
//     lanes.run(0, [&] { forward(); });             // on the caller's current stream, at the same time
//   }                                               // nor here
//
// Both streams wait for each other where a composed action begins and where it ends, also when it ends by an exception.
// So two computations are unordered only within one action, and only two hazards are left there:
//
//   - What one makes and the other reads. Nothing: no part of an action uses what another part makes, and what several
//     use (metrics, sums of losses, gradients of a tied parameter) is written by one of them, or after the action.
//     Messages arrive on a third stream, in the order of the program, and their users wait for them.
//   - Memory that is freed while a stream still reads it. An allocator gives a block back to the stream that it was
//     allocated for at once. The backward is issued first, so only what the *backward* frees can be taken by the
//     forward beside it, and only if it was allocated for the forward's stream. A microbatch's F, B, I and W are on one
//     stream, so all that F made for B is safe. What comes from elsewhere is: transfers and gradients of other stages,
//     and messages, which are kept for the stream that takes them (ProgramRun::take); and the stage's inputs, which
//     their owner keeps until the end of the run (PipelineStage::forward). Parameters, gathered ones too, and gradients
//     live longer than an action. What the forward frees is reused after the action at the earliest.
//
// Each tensor by name: docs/decisions/0022-composed-computations-on-two-streams.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "d9d/core/communicator/world.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {

class Lanes {
 public:
  explicit Lanes(std::shared_ptr<World> world);  // on its device

  // Runs `work` on the stream of a lane, with World::lane() set: 0 is the caller's current stream. The other stream is
  // not waited for.
  void run(std::int64_t lane, const std::function<void()>& work) const;
  // Runs `receive` on the third stream, after all work that is on the caller's current stream now.
  [[nodiscard]] StreamEvent receive(const std::function<void()>& receive) const { return receives_.run(receive); }

  // Joins both streams when it is made and when it ends.
  class Joined {
   public:
    explicit Joined(const Lanes* lanes);  // borrowed; null: there is one stream
    ~Joined();
    Joined(const Joined&) = delete;
    Joined& operator=(const Joined&) = delete;

   private:
    const Lanes* lanes_;
  };

 private:
  std::shared_ptr<World> world_;
  SideStream second_;
  SideStream receives_;
};

}  // namespace d9d
