#include "d9d/loop/component/first_step_checks.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_set>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/loop/control/trainable_parameters.h"

namespace d9d {
namespace {

std::string_view bytes_of(const void* data, std::size_t size) { return {static_cast<const char*>(data), size}; }

// "layers.0.up.weight and 5 more"
std::string first_of(const std::vector<std::string>& names) {
  return names.size() == 1 ? names.front() : cat(names.front(), " and ", names.size() - 1, " more");
}

// The first packs of two ranks, as check_packs() gathers them.
void check_pair(const nlohmann::json& first, const nlohmann::json& second) {
  const bool shares_data = first["share"] == second["share"];
  if (first["hash"].is_null() || second["hash"].is_null()) return;
  D9D_CHECK(
      !shares_data || first["hash"] == second["hash"], StateError,
      "[loop::data] expected the same samples on the ranks that compute a microbatch together, got others on two "
      "of data-parallel rank ",
      first["share"].dump(),
      ". Divide samples in DataProvider::build_pack_stream by context.data_parallel_rank(), not by the rank in the "
      "world, or set trainer.refuse_equal_data to false if ranks cut sequences themselves.");
  const bool repeats = !first["number"].is_null() && first["number"] != second["number"];
  D9D_CHECK(shares_data || first["hash"] != second["hash"] || repeats, StateError,
            "[loop::data] expected other samples on each data-parallel rank, got the same first microbatch on ",
            first["share"].dump(), " and ", second["share"].dump(),
            ". Divide them in DataProvider::build_pack_stream by context.data_parallel_rank(), or set "
            "trainer.refuse_equal_data to false if equal samples are meant.");
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
  const auto dtype = static_cast<std::int64_t>(tensor.scalar_type());
  hash = fnv1a(bytes_of(&dtype, sizeof(dtype)), hash);
  hash = fnv1a(bytes_of(tensor.sizes().data(), tensor.sizes().size() * sizeof(std::int64_t)), hash);
  if (tensor.layout() != at::kStrided) return hash;
  const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
  return fnv1a(bytes_of(values.const_data_ptr(), values.nbytes()), hash);
}

FirstStep::FirstStep(const DistContext& context) : context_(context), generators_(generator_states()) {}

void FirstStep::check_packs(const FirstPack& own) const {
  if (context_.world_size() == 1) return;
  const auto or_null = [](const auto& value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  const nlohmann::json entry = {{"share", context_.data_parallel_rank()},
                                {"size", own.num_microbatches},
                                {"hash", or_null(own.hash)},
                                {"number", or_null(own.number)}};
  const auto all = all_gather_object(entry, *context_.mesh(MeshDomain::kBatch).communicator());
  for (std::size_t i = 0; i < all.size(); ++i) {
    D9D_CHECK(all[i]["size"] > 0, StateError,
              "[loop::data] expected a microbatch on every rank in the first step, got ", "none on rank ", i,
              ". Give each rank at least one, if need be with the loss weight 0.");
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) check_pair(all[j], all[i]);
  }
}

void FirstStep::watch(const at::Tensor& loss) {
  namespace ag = torch::autograd;
  const auto add_leaf = [this](const at::Tensor& leaf) {
    leaves_.try_emplace(leaf.unsafeGetTensorImpl(), leaf.getIntrusivePtr());
  };
  if (loss.is_leaf()) add_leaf(loss);
  std::vector<ag::Node*> pending = {loss.grad_fn().get()};
  std::unordered_set<const ag::Node*> seen;
  while (!pending.empty()) {
    ag::Node* const node = pending.back();
    pending.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    if (const auto* leaf = dynamic_cast<const ag::AccumulateGrad*>(node)) {
      add_leaf(leaf->variable);
    }
    for (const ag::Edge& edge : node->next_edges()) pending.push_back(edge.function.get());
  }
}

void FirstStep::warn(const Module& module) {
  const auto parameters = module.named_parameters();
  std::vector<std::int64_t> is_reached;
  for (const auto& [name, parameter] : parameters) {
    // Ends the entry, so that what is left belongs to no module.
    is_reached.push_back(static_cast<std::int64_t>(leaves_.erase(parameter->local().unsafeGetTensorImpl())));
  }
  const at::Tensor reached = at::tensor(is_reached, at::kLong).to(context_.device());
  const DeviceMesh of_stage = context_.mesh(MeshDomain::kBatch).slice({"dp", "cp", "tp"});  // have the same parameters
  if (of_stage.num_ranks() > 1) of_stage.communicator()->all_reduce(reached, ReduceOp::kMax).wait();
  if (of_stage.index() != 0) return;
  const at::Tensor on_host = reached.cpu();
  std::vector<std::string> untrained;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_untrained = on_host.const_data_ptr<std::int64_t>()[i] == 0;
    if (parameters[i].second->requires_grad() && is_untrained) untrained.push_back(parameters[i].first);
  }
  std::vector<std::string> foreign;
  for (const auto& [impl, leaf] : leaves_) {
    if (const auto alive = leaf.lock()) foreign.push_back(cat("of shape ", alive->sizes()));
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

FirstUpdate::FirstUpdate(const Module& module) {
  constexpr std::int64_t kNumElements = 1024;
  for (const NamedParameter& parameter : trainable_parameters(module).parameters) {
    const at::Tensor tensor = parameter.tensor.detach();
    if (tensor.numel() == 0 || !tensor.is_contiguous()) continue;
    parameters_.push_back(tensor.view({-1}).narrow(0, 0, std::min(kNumElements, tensor.numel())));
    before_.push_back(parameters_.back().clone());
  }
}

void FirstUpdate::warn(const DistContext& context, double learning_rate) const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (!at::equal(parameters_[i], before_[i])) return;
  }
  if (parameters_.empty()) return;
  context.log().warning(
      "the optimiser's first step changed no parameter, at a learning rate of ", learning_rate,
      ". Build it on the tensors of TrainableParameters that build_optimizer gets. In bfloat16 small steps vanish: set "
      "trainer.model_stage_factory.master_dtype, or use stochastic rounding.");
}

}  // namespace d9d
