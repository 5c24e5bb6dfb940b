#include "d9d/pipelining/executor/compute_streams.h"

#include <exception>
#include <utility>

namespace d9d {

ComputeStreams::ComputeStreams(std::shared_ptr<World> world)
    : world_(std::move(world)), second_(world_->device()), receives_(world_->device()) {}

void ComputeStreams::run(std::int64_t lane, const std::function<void()>& work) const {
  struct Restore {
    World& world;
    ~Restore() { world.set_lane(0); }
  } const restore{*world_};
  world_->set_lane(lane);
  if (lane == 0) return work();
  (void)second_.run_at_once(work);
}

ComputeStreams::Joined::Joined(const ComputeStreams* streams) : streams_(streams) {
  if (streams_ != nullptr) streams_->second_.run([] {}).wait();
}

ComputeStreams::Joined::~Joined() {
  if (streams_ == nullptr) return;
  try {
    streams_->second_.run([] {}).wait();
  } catch (const std::exception&) {  // a CUDA error: nothing runs any more, and the next operation reports it
  }
}

}  // namespace d9d
