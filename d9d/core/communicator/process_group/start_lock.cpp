#include "d9d/core/communicator/process_group/start_lock.h"

namespace d9d {

std::unique_lock<std::mutex> lock_starts() {
  static std::mutex mutex;  // lint: allow(mutable-global): as global as the record that it guards
  return std::unique_lock(mutex);
}

}  // namespace d9d
