#include "d9d/pipelining/executor/lanes.h"

#include <exception>
#include <utility>

namespace d9d {

Lanes::Lanes(std::shared_ptr<World> world)
    : world_(std::move(world)), second_(world_->device()), receives_(world_->device()) {}

void Lanes::run(std::int64_t lane, const std::function<void()>& work) const {
  struct Restore {
    World& world;
    ~Restore() { world.set_lane(0); }
  } const restore{*world_};
  world_->set_lane(lane);
  if (lane == 0) return work();
  (void)second_.run_at_once(work);
}

Lanes::Joined::Joined(const Lanes* lanes) : lanes_(lanes) {
  if (lanes_ != nullptr) lanes_->second_.run([] {}).wait();
}

Lanes::Joined::~Joined() {
  if (lanes_ == nullptr) return;
  try {
    lanes_->second_.run([] {}).wait();
  } catch (const std::exception&) {  // a CUDA error: nothing runs any more, and the next operation reports it
  }
}

}  // namespace d9d
