// Runs a test's body on several ranks, which are threads of the test: a distributed program without a launcher or GPUs.
//
// Example
//   testing::run_ranks({.data_parallel_shard = 2}, [](const d9d::DistContext& context) {
//     const at::Tensor one = at::ones({1});
//     context.mesh(d9d::MeshDomain::kBatch).communicator()->all_reduce(one, d9d::ReduceOp::kSum).wait();
//     EXPECT_EQ(one.item<float>(), 2);
//   });
//
// A rank that throws aborts the others, and the first exception is rethrown when all have ended. Operators of LibTorch
// use one thread for each rank. All ranks run the same body object: each may write only its own data.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>

#include "d9d/core/communicator/world.h"
#include "d9d/core/dist_context/dist_context.h"

namespace d9d::testing {

// How the ranks communicate.
enum class RankBackend : std::uint8_t {
  kThreads,  // through shared memory; reports the rank that called a different operation than the others
  kGloo,     // through sockets, as processes on CPUs do
};

struct RankOptions {
  RankBackend backend = RankBackend::kThreads;
  std::chrono::seconds time_limit = std::chrono::seconds(60);  // afterwards ranks are aborted: StateError
};

void run_ranks(const DeviceMeshParameters& mesh, const std::function<void(const DistContext&)>& body,
               const RankOptions& options = {});
// The same without a mesh.
void run_ranks(std::int64_t num_ranks, const std::function<void(World&)>& body, const RankOptions& options = {});

}  // namespace d9d::testing
