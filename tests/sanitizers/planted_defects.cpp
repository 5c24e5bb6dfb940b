// A race between ranks and a leak of one rank, which the sanitizer presets must find in a job whose ranks are threads.
//
//   planted_defects race|leak
#include <barrier>
#include <string_view>

#include "d9d/base/check.h"
#include "d9d/core/launch/thread_ranks.h"

namespace {

void race() {
  volatile int shared = 0;
  std::barrier together(2);  // nothing orders the ranks from here on
  d9d::run_thread_ranks(2, [&](const auto&) {
    together.arrive_and_wait();
    for (int i = 0; i < 1'000'000; ++i) shared = shared + 1;
  });
}

void leak() {
  d9d::run_thread_ranks(2, [](const auto& world) {
    const std::shared_ptr<d9d::World>* volatile lost = new std::shared_ptr<d9d::World>(world);
    D9D_ASSERT(lost != nullptr, "nobody deletes it");
  });
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view defect = argc == 2 ? argv[1] : "";
  if (defect == "race") race();
  if (defect == "leak") leak();
  return defect == "race" || defect == "leak" ? 0 : 2;
}
