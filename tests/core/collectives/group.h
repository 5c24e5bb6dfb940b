// Runs bodies on all ranks of one group.
//
// Example
//   test::on_group(4, [](const std::shared_ptr<Communicator>& group) { group->barrier(); });
//   test::on_group(RankBackend::kNccl, 2, ...);   // threads otherwise
#pragma once

#include <functional>
#include <memory>
#include <numeric>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/core/launch/thread_ranks.h"

#include "tests/support/ranks.h"

namespace d9d::test {

inline void on_group(std::int64_t num_ranks,
                     const std::function<void(const std::shared_ptr<Communicator>& communicator)>& body) {
  run_thread_ranks(num_ranks, [&](const std::shared_ptr<World>& world) {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(num_ranks));
    std::iota(ranks.begin(), ranks.end(), 0);
    body(world->communicator({.name = "all", .ranks = ranks, .index = world->rank()}));
  });
}

inline void on_group(RankBackend backend, std::int64_t num_ranks,
                     const std::function<void(const std::shared_ptr<Communicator>& communicator)>& body) {
  run_ranks(backend, num_ranks, [&](World& world) { body(world.communicator(group_of(world, "all"))); });
}

// Throws if the tensors differ: a rank that only recorded the difference would leave the others waiting, or continue
// with wrong values.
inline void require_equal(const at::Tensor& on_device, const at::Tensor& expected) {
  const at::Tensor actual = on_device.cpu();
  D9D_ASSERT(actual.sizes() == expected.sizes() && actual.scalar_type() == expected.scalar_type() &&
                 at::equal(actual, expected),
             "expected ", expected, ", got ", actual);
}

}  // namespace d9d::test
