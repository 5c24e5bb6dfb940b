#include "d9d/core/communicator/process_group/start_lock.h"

namespace d9d {

std::unique_lock<std::mutex> lock_starts() {
  static std::mutex mutex;  // lint: allow(mutable-global): guards a record that is global to the process
  return std::unique_lock(mutex);
}

}  // namespace d9d
