// The two streams of a GPU on which composed computations run at the same time, and the order between them.
//
// Example
//   const ComputeStreams streams(world);
//   {
//     const ComputeStreams::Joined joined(&streams);  // each stream waits for the other
//     streams.run(1, [&] { backward(); });       // on the second stream
//     streams.run(0, [&] { forward(); });        // on the caller's current stream, at the same time
//   }                                          // each stream waits for the other again
//
// The two streams wait for each other where a composed action begins and where it ends, even if it ends by an
// exception. So two computations are unordered only within one action, where two hazards must be excluded:
//
//   - Data that one part writes and another part reads. No part of an action uses an output of another part. Data that
//     parts share (metrics, sums of losses, gradients of a tied parameter) are written by only one of them, or after
//     the action. Messages are received on a third stream, in the order of the program, and the computations that use
//     them wait for them.
//   - Memory that is freed while a stream still reads it. The allocator immediately gives a freed block back to the
//     stream that it was allocated for. The backward is issued first, so the forward beside it can only reuse memory
//     that the *backward* frees, and only if it was allocated for the forward's stream. F, B, I and W of a microbatch
//     run on one stream, so everything that F allocates for B is safe. Memory from elsewhere is safe, too: transfers
//     and gradients of other stages, and messages, are kept for the stream that uses them (ProgramRun::take_input),
//     and the stage's inputs are kept by their owner until the end of the run (PipelineStage::forward). Parameters,
//     gathered ones included, and gradients outlive the action. Memory that the forward frees is reused after the
//     action at the earliest.
//
// docs/decisions/0022-composed-computations-on-two-streams.md lists each tensor by name.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "d9d/core/communicator/world.h"
#include "d9d/core/device/side_stream.h"

namespace d9d {

class ComputeStreams {
 public:
  explicit ComputeStreams(std::shared_ptr<World> world);  // creates the streams of lane 1 and of receive()

  // Runs `work` on the stream of `lane`, with World::lane() set to it. Lane 0 is the caller's current stream, lane 1
  // the second stream. Neither stream waits for the other.
  void run(std::int64_t lane, const std::function<void()>& work) const;
  // Runs `receive` on the third stream, after all work that has been queued on the caller's current stream.
  [[nodiscard]] StreamEvent receive(const std::function<void()>& receive) const { return receives_.run(receive); }

  // Makes both streams wait for each other in its constructor and again in its destructor.
  class Joined {
   public:
    explicit Joined(const ComputeStreams* streams);  // borrowed; null: nothing waits
    ~Joined();
    Joined(const Joined&) = delete;
    Joined& operator=(const Joined&) = delete;

   private:
    const ComputeStreams* streams_;
  };

 private:
  std::shared_ptr<World> world_;
  SideStream second_;
  SideStream receives_;
};

}  // namespace d9d
