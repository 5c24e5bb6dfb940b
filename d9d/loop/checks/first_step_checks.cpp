#include "d9d/loop/checks/first_step_checks.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "d9d/base/check.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/loop/task/trainable_parameters.h"

namespace d9d {
namespace {

std::string_view bytes_of(const void* data, std::size_t size) { return {static_cast<const char*>(data), size}; }

// Returns a text such as "layers.0.up.weight and 5 more".
std::string first_of(const std::vector<std::string>& names) {
  return names.size() == 1 ? names.front() : cat(names.front(), " and ", names.size() - 1, " more");
}

at::Tensor first_elements(const at::Tensor& tensor) {
  constexpr std::int64_t kNumElements = 1024;
  return tensor.detach().view({-1}).narrow(0, 0, std::min(kNumElements, tensor.numel()));
}

// Returns a hash of the positions that the elements of this rank have in the whole parameter.
std::uint64_t hash_of_boxes(const NamedParameter& parameter) {
  std::uint64_t hash = fnv1a("");
  for (const HeldPart& part : held_parts(parameter.laid_out(parameter.tensor))) {
    hash = fnv1a(cat(at::IntArrayRef(part.box.start), at::IntArrayRef(part.box.sizes)), hash);
  }
  return hash;
}

// Throws the errors of check_packs() for two ranks, whose entries check_packs() has gathered.
void check_pair(const nlohmann::json& first, const nlohmann::json& second) {
  const bool shares_data = first["share"] == second["share"];
  if (first["hash"].is_null() || second["hash"].is_null()) return;
  D9D_CHECK(
      !shares_data || first["hash"] == second["hash"], StateError,
      "[loop::data] expected the same samples on the ranks that compute a microbatch together, got others on two "
      "ranks of data-parallel rank ",
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
  const bool is_streamed = state.is_object() && state.contains("part") && state.contains("sequence");
  const bool is_ours = is_streamed || (state.is_object() && state.contains("layout"));
  const nlohmann::json own = is_ours && state.contains("order")
                                 ? nlohmann::json{state.at("order"), state.value("layout", nlohmann::json())}
                                 : nlohmann::json();
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

FirstStep::FirstStep(const DistContext& context) : context_(context), generators_(context.device()) {}

void FirstStep::check_packs(const FirstPack& own) const {
  if (context_.world_size() == 1) return;
  const auto or_null = [](const auto& value) { return value ? nlohmann::json(*value) : nlohmann::json(); };
  const nlohmann::json entry = {
      {"share", context_.data_parallel_rank()}, {"hash", or_null(own.hash)}, {"number", or_null(own.number)}};
  const auto all = all_gather_object(entry, *context_.mesh(MeshDomain::kBatch).communicator());
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

void FirstStep::warn(const std::vector<std::shared_ptr<Module>>& stages) {
  std::vector<std::pair<std::string, ParameterPtr>> parameters;
  for (const auto& stage : stages) {
    const auto own = stage->named_parameters();
    parameters.insert(parameters.end(), own.begin(), own.end());
  }
  std::vector<std::int64_t> is_reached;
  for (const auto& [name, parameter] : parameters) {
    // Erases each parameter's leaf, so that the leaves that remain in leaves_ belong to no module.
    is_reached.push_back(static_cast<std::int64_t>(leaves_.erase(parameter->local().unsafeGetTensorImpl())));
  }
  const at::Tensor reached = at::tensor(is_reached, at::kLong).to(context_.device());
  // The ranks that have the same pipeline stages, and therefore the same parameters.
  const DeviceMesh of_stage = context_.mesh(MeshDomain::kBatch).slice({"dp", "cp", "tp"});
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
  if (DefaultGenerators(context_.device()) == generators_) return;
  log.warning(
      "LibTorch's random generator was used in the first step: its numbers depend on how ranks share the work. "
      "Use d9d::Dropout, or a RandomStream.");
}

void FirstUpdate::begin(const Module& module, double learning_rate) {
  if (is_done_ || learning_rate == 0) return;
  learning_rate_ = learning_rate;
  samples_.clear();
  for (const NamedParameter& parameter : trainable_parameters(module).parameters) {
    const at::Tensor stored = parameter.tensor.detach();
    if (stored.numel() == 0 || !stored.is_contiguous()) continue;
    const at::Tensor elements = first_elements(stored);
    samples_.push_back({.name = parameter.name,
                        .place = hash_of_boxes(parameter),
                        .stored = parameter.tensor,
                        .elements = elements,
                        .before = elements.clone()});
  }
}

void FirstUpdate::end(const DistContext& context, bool has_gradients) {
  if (is_done_ || learning_rate_ == 0 || !has_gradients) return;
  nlohmann::json own = nlohmann::json::object();
  for (const Sample& sample : samples_) {
    const at::Tensor& gradient = sample.stored.grad();
    const bool has_gradient = gradient.defined() && gradient.is_contiguous() && gradient.numel() > 0 &&
                              first_elements(gradient).any().item<bool>();
    own[sample.name] = {{"place", sample.place},
                        {"values", hash_tensor(sample.elements, 0)},
                        {"stays", has_gradient && at::equal(sample.elements, sample.before)},
                        {"changes", !at::equal(sample.elements, sample.before)}};
  }
  samples_.clear();
  const std::vector<nlohmann::json> all = all_gather_object(own, context.mesh(MeshDomain::kBatch));
  std::set<std::string> stay, change, differ;
  std::map<std::pair<std::string, std::uint64_t>, std::uint64_t> values_at;
  for (const nlohmann::json& one : all) {
    for (const auto& [name, sample] : one.items()) {
      if (sample["stays"]) stay.insert(name);
      if (sample["changes"]) change.insert(name);
      const auto values = sample["values"].get<std::uint64_t>();
      const auto [held, is_new] = values_at.try_emplace({name, sample["place"].get<std::uint64_t>()}, values);
      if (!is_new && held->second != values) differ.insert(name);
    }
  }
  std::erase_if(
      stay, [&](const std::string& name) { return change.contains(name) || (stayed_ && !stayed_->contains(name)); });
  is_done_ = stayed_ || stay.empty();
  if (is_done_ && !stay.empty() && context.is_main_process()) {
    context.log().warning(
        "the optimiser's first two steps did not change ", first_of({stay.begin(), stay.end()}),
        ", which has a gradient, at a learning rate of ", learning_rate_,
        ". Build it on the tensors of TrainableParameters that build_optimizer gets, all of them. In bfloat16 small "
        "steps vanish: set trainer.model_stage_factory.master_dtype, or use stochastic rounding, by which a small "
        "parameter may move in a later step.");
  }
  D9D_CHECK(
      differ.empty(), ConfigError, "[loop::training] expected equal values of ",
      first_of({differ.begin(), differ.end()}),
      " on all ranks that hold the same elements after the first step, got others. Build model and optimiser alike "
      "on every rank, and write to parameters on all of them.");
  stayed_ = std::move(stay);
}

void warn_of_float16(const DistContext& context, const Module& module) {
  for (const auto& [name, parameter] : module.named_parameters()) {
    if (!parameter->requires_grad() || parameter->local().scalar_type() != at::kHalf) continue;
    context.log().warning(
        "the model computes in float16 (", name,
        ") and losses are not scaled: gradients below 6e-8 become 0, those above 65504 infinite. Use ",
        "bfloat16, with trainer.model_stage_factory.master_dtype = float32 or optimizer.name = ", "stochastic_adamw");
    return;
  }
}

bool warn_of_evaluation(const std::vector<std::shared_ptr<Module>>& stages, const DistContext& context,
                        std::int64_t step) {
  if (std::ranges::all_of(stages, [](const auto& stage) { return stage->is_training(); })) return false;
  if (context.is_main_process()) {
    context.log().warning(
        "the model is in evaluation mode in step ", step,
        ", where Dropout does nothing. Call train() after an evaluation; call eval() on parts, not on "
        "the model, to keep them so.");
  }
  return true;
}

}  // namespace d9d
