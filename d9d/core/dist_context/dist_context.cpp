#include "d9d/core/dist_context/dist_context.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/config/config_path.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/to_host.h"
#include "d9d/core/device/vector_math.h"

namespace d9d {
namespace {

std::vector<MeshAxis> axes_of(const DeviceMeshParameters& mesh, MeshDomain domain) {
  const std::int64_t pp = mesh.pipeline_parallel;
  const std::int64_t dp_replicate = mesh.data_parallel_replicate;
  const std::int64_t dp_shard = mesh.data_parallel_shard;
  const std::int64_t cp_shard = mesh.context_parallel_shard;
  const std::int64_t cp_replicate = mesh.context_parallel_replicate;
  const std::int64_t tp = mesh.tensor_parallel;
  const std::int64_t ep = mesh.expert_parallel;
  switch (domain) {
    case MeshDomain::kRegular:
      return {{"pp", pp},
              {"dp_replicate", dp_replicate},
              {"dp_shard", dp_shard},
              {"cp_shard", cp_shard},
              {"cp_replicate", cp_replicate},
              {"tp", tp}};
    case MeshDomain::kDense:
      return {{"pp", pp},
              {"dp_replicate", dp_replicate},
              {"dp_cp_shard", dp_shard * cp_shard},
              {"cp_replicate", cp_replicate},
              {"tp", tp}};
    case MeshDomain::kExpert:
      return {{"pp", pp}, {"ep_replicate", mesh.world_size() / pp / ep}, {"ep_shard", ep}};
    case MeshDomain::kBatch:
      return {{"pp", pp}, {"dp", dp_replicate * dp_shard}, {"cp", cp_shard * cp_replicate}, {"tp", tp}};
    case MeshDomain::kFlat:
      break;
  }
  return {{"world", mesh.world_size()}};
}

std::string log_qualifier(const DeviceMesh& regular) {
  constexpr std::array kNames = {"pp", "dpr", "dps", "cps", "cpr", "tp"};
  std::string text;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (regular.axes()[i].size > 1) text += cat(text.empty() ? "" : "-", kNames[i], ":", regular.coordinate()[i]);
  }
  return text.empty() ? "local" : text;
}

DistContextConfig checked(DistContextConfig config) {
  config.mesh.validate(ConfigPath{.keys = "mesh"});
  std::string product;
  for_each_field<DeviceMeshParameters>([&](const auto& field) {
    const std::int64_t degree = config.mesh.*field.member;
    if (degree == 1 || field.name == "expert_parallel") return;
    product += cat(product.empty() ? "" : " x ", field.name, " ", degree);
  });
  D9D_CHECK(config.mesh.world_size() == config.world->size(), ConfigError,
            "[core::dist_context] expected a mesh for the ", config.world->size(), " ranks that were started, got ",
            product.empty() ? "" : product + " = ", config.mesh.world_size(),
            ". Start as many ranks, or change the degrees in mesh.");
  return config;
}

}  // namespace

DistContext::DistContext(DistContextConfig config) : config_(checked(std::move(config))) {
  choose_vector_math();
  for (const MeshDomain domain :
       {MeshDomain::kRegular, MeshDomain::kDense, MeshDomain::kExpert, MeshDomain::kBatch, MeshDomain::kFlat}) {
    meshes_[static_cast<std::size_t>(domain)] =
        DeviceMesh(std::string(enum_name(domain)), axes_of(config_.mesh, domain), config_.world);
  }
  log_ = Logger({.qualifier = log_qualifier(mesh(MeshDomain::kRegular)),
                 .min_level = config_.log_level,
                 .sink = config_.log_sink});
}

std::vector<std::string> dense_data_axes() { return {"dp_replicate", "dp_cp_shard", "cp_replicate"}; }

std::int64_t DistContext::data_parallel_size() const { return mesh(MeshDomain::kBatch).axis_size("dp"); }
std::int64_t DistContext::data_parallel_rank() const { return mesh(MeshDomain::kBatch).axis_coordinate("dp"); }

void DistContext::wait_world() const { mesh(MeshDomain::kFlat).communicator()->barrier(); }

// Runs body() on the first rank, then on the others. An all-reduce after each of these two turns tells all ranks
// whether a body has failed.
void DistContext::first(bool is_first, const std::function<void()>& body) const {
  const auto world = mesh(MeshDomain::kFlat).communicator();
  const auto take_turn = [&](bool is_mine) {
    std::exception_ptr failure;
    if (is_mine) {
      try {
        body();
      } catch (...) {
        failure = std::current_exception();
      }
    }
    const at::Tensor failed_rank =
        at::full({}, failure ? rank() : -1, at::TensorOptions(at::kLong).device(world->device()));
    world->all_reduce(failed_rank, ReduceOp::kMax).wait();
    if (failure) std::rethrow_exception(failure);
    const auto failed = to_host(failed_rank, *world).item<std::int64_t>();
    D9D_CHECK(failed < 0, PeerFailedError, "[core::dist_context] rank ", failed,
              " failed in main_process_first. Its own message says why.");
  };
  take_turn(is_first);
  take_turn(!is_first);
}

void DistContext::main_process_first(const std::function<void()>& body) const { first(is_main_process(), body); }
void DistContext::local_main_process_first(const std::function<void()>& body) const {
  first(is_local_main_process(), body);
}

void DistContext::set_timeout(std::chrono::milliseconds timeout) const {
  if (world_size() == 1) return;
  log_.debug("communication may now take ", static_cast<double>(timeout.count()) / 1e3, " s");
  wait_world();  // so that no operation with the old timeout is pending
  config_.world->set_timeout(timeout);
}

void DistContext::fail_at_end(std::string error) const {
  if (!failure_at_end_) failure_at_end_ = std::move(error);
}

void DistContext::close() const {
  wait_world();
  config_.world->close();
}

}  // namespace d9d
