#include "d9d/loop/component/first_step_checks.h"

#include <cstring>
#include <string>
#include <string_view>
#include <unordered_set>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

std::string_view bytes_of(const void* data, std::size_t size) { return {static_cast<const char*>(data), size}; }

// "layers.0.up.weight and 5 more"
std::string first_of(const std::vector<std::string>& names) {
  return names.size() == 1 ? names.front() : cat(names.front(), " and ", names.size() - 1, " more");
}

}  // namespace

void check_data_order(const DistContext& context, const nlohmann::json& state) {
  if (context.world_size() == 1) return;
  const bool is_ours = state.is_object() && state.contains("order") && state.contains("layout");
  const nlohmann::json own = is_ours ? nlohmann::json{state.at("order"), state.at("layout")} : nlohmann::json();
  const std::vector<nlohmann::json> all = all_gather_object(own, *context.mesh(MeshDomain::kBatch).communicator());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].is_null() || all[0].is_null()) continue;
    D9D_CHECK(all[rank] == all[0], ConfigError,
              "[loop::data] expected all ranks to deal one dataset in one order, got ", all[0].dump(),
              " on rank 0 and ", all[rank].dump(), " on rank ", rank,
              ". Give all ranks the same files, configuration and seed.");
  }
}

std::uint64_t hash_tensor(const at::Tensor& tensor, std::uint64_t hash) {
  if (!tensor.defined()) return hash;
  const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
  const auto dtype = static_cast<std::int64_t>(values.scalar_type());
  hash = fnv1a(bytes_of(&dtype, sizeof(dtype)), hash);
  hash = fnv1a(bytes_of(values.sizes().data(), values.sizes().size() * sizeof(std::int64_t)), hash);
  return fnv1a(bytes_of(values.const_data_ptr(), values.nbytes()), hash);
}

FirstStep::FirstStep(const DistContext& context) : context_(context), generators_(generator_states()) {}

void FirstStep::check_batches(std::uint64_t hash) const {
  const DeviceMesh ranks = context_.mesh(MeshDomain::kBatch).slice({"dp"});
  if (ranks.num_ranks() == 1) return;
  std::unordered_map<std::uint64_t, std::size_t> rank_of;
  const std::vector<nlohmann::json> all = all_gather_object(hash, *ranks.communicator());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto [found, is_new] = rank_of.emplace(all[rank].get<std::uint64_t>(), rank);
    D9D_CHECK(is_new, StateError,
              "[loop::data] expected other samples on each data-parallel rank, got the same first microbatch on ",
              found->second, " and ", rank,
              ". Divide them in DataProvider::build_pack_stream by context.data_parallel_rank(), or set "
              "trainer.refuse_equal_data to false if equal samples are meant.");
  }
}

void FirstStep::watch(const at::Tensor& loss) {
  namespace ag = torch::autograd;
  std::vector<ag::Node*> pending = {loss.grad_fn().get()};
  std::unordered_set<const ag::Node*> seen;
  while (!pending.empty()) {
    ag::Node* const node = pending.back();
    pending.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const ag::AccumulateGrad*>(node)) {
      leaves_.emplace(leaf->variable.unsafeGetTensorImpl(), leaf->variable);
    }
    for (const ag::Edge& edge : node->next_edges()) pending.push_back(edge.function.get());
  }
}

void FirstStep::warn(const Module& module) const {
  if (!context_.is_main_process()) return;
  std::vector<std::string> untrained;
  std::unordered_set<const at::TensorImpl*> parameters;
  for (const auto& [name, parameter] : module.named_parameters()) {
    parameters.insert(parameter->local().unsafeGetTensorImpl());
    const bool is_reached = leaves_.contains(parameter->local().unsafeGetTensorImpl());
    if (parameter->requires_grad() && !is_reached) untrained.push_back(name);
  }
  std::vector<std::string> foreign;
  for (const auto& [impl, leaf] : leaves_) {
    if (!parameters.contains(impl)) foreign.push_back(cat("of shape ", leaf.sizes()));
  }
  const Logger& log = context_.log();
  if (!untrained.empty()) {
    log.warning(
        "no loss of the first step depends on ", first_of(untrained),
        ". If that is meant, freeze it with set_requires_grad(false); else look for detach(), NoGradGuard, or a "
        "module that is not called.");
  }
  if (!foreign.empty()) {
    log.warning("losses depend on a tensor ", first_of(foreign),
                " that requires a gradient and belongs to no module: nothing updates it. Register it with "
                "register_parameter().");
  }
  const std::vector<at::Tensor> states = generator_states();
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (std::memcmp(states[i].const_data_ptr(), generators_[i].const_data_ptr(), states[i].nbytes()) == 0) continue;
    log.warning(
        "LibTorch's random generator was used in the first step: its numbers depend on how ranks share the work. "
        "Use d9d::Dropout, or a RandomStream.");
    return;
  }
}

std::vector<at::Tensor> FirstStep::generator_states() const {
  std::vector<at::Tensor> states = {at::globalContext().defaultGenerator(at::kCPU).get_state()};
  const at::Device device = context_.device();
  if (!device.is_cpu()) states.push_back(at::globalContext().defaultGenerator(device).get_state());
  return states;
}

}  // namespace d9d
