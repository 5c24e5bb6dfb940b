#include "d9d/modules/adopt.h"

#include <mutex>
#include <typeinfo>
#include <unordered_map>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"

namespace d9d::detail {
namespace {

using TorchModulePtr = std::shared_ptr<torch::nn::Module>;

void check_distinct(const torch::nn::Module& module) {
  std::unordered_map<const void*, std::string> names;
  for (const auto& entry : module.named_parameters()) {
    const auto [known, is_new] = names.emplace(entry.value().unsafeGetTensorImpl(), entry.key());
    D9D_CHECK(is_new, ConfigError, "[modules::adopt] expected distinct parameters, got one tensor as '", known->second,
              "' and '", entry.key(), "': tied parameters inside an adopted module are not built in this version.");
  }
}

// Runs `factory`, in one thread at a time, and restores the state of ATen's default CPU generator afterwards.
TorchModulePtr make_seeded(const AdoptedModule::Factory& factory, std::uint64_t seed) {
  // lint: allow(mutable-global): guards ATen's generator, which is global to the process
  static std::mutex one_at_a_time;
  const std::lock_guard guard(one_at_a_time);
  struct Restored {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
    at::Tensor state = generator.get_state();
    ~Restored() { generator.set_state(state); }
  } restored;
  restored.generator.set_current_seed(seed);
  const at::AutoGradMode as_torch_constructs(true);
  TorchModulePtr module = factory();
  D9D_CHECK(module != nullptr, ConfigError, "[modules::adopt] expected a torch::nn module, got null.");
  check_distinct(*module);
  return module;
}

// The role of a module's own parameters, without those of modules below it.
ParameterRole role_of(const torch::nn::Module& module) {
  const bool is_embedding = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module) != nullptr ||
                            dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module) != nullptr;
  if (is_embedding) return ParameterRole::kEmbedding;
  const bool is_norm = dynamic_cast<const torch::nn::LayerNormImpl*>(&module) != nullptr;  // of any number of dims
  return is_norm ? ParameterRole::kNorm : ParameterRole::kUnknown;
}

// An initializer that does nothing: AdoptedModule::after_reset sets all parameters of the module together.
void leave_as_is(const at::Tensor&, const ElementWindow&, RandomStream) {}

}  // namespace

AdoptedTensors::AdoptedTensors(const torch::nn::Module& source) {
  for (const auto& entry : source.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = entry.value();
    const ParameterPtr parameter = register_parameter(
        entry.key(), ParameterSpec{.shape = tensor.sizes().vec(), .init = leave_as_is, .role = role_of(source)});
    parameter->to(tensor.scalar_type());
    parameter->set_requires_grad(tensor.requires_grad());
  }
  for (const auto& entry : source.named_buffers(/*recurse=*/false)) {
    const at::Tensor& tensor = entry.value();
    register_buffer(entry.key(), {.shape = tensor.sizes().vec(), .dtype = tensor.scalar_type(), .init = leave_as_is});
  }
  for (const auto& entry : source.named_children()) register_module<AdoptedTensors>(entry.key(), *entry.value());
}

AdoptedModule::AdoptedModule(Factory factory) : AdoptedModule(factory, make_seeded(factory, /*seed=*/0)) {}

AdoptedModule::AdoptedModule(Factory factory, const TorchModulePtr& made)
    : AdoptedTensors(*made),
      factory_(std::move(factory)),
      is_linear_(typeid(*made) == typeid(torch::nn::LinearImpl)),
      adopted_parameters_(named_parameters()) {}

void AdoptedModule::set_term(const std::shared_ptr<AdoptedTerm>& term) {
  D9D_ASSERT(is_linear_, "a term of a torch::nn::Linear");
  if (term_ != nullptr) remove_child("");
  term_ = term;
  if (term_ != nullptr) register_unnamed(term_);
}

at::Tensor AdoptedModule::with_term(const at::Tensor& output, const at::Tensor& input) const {
  return term_ == nullptr ? output : output + term_->forward(input);
}

void AdoptedModule::after_materialize(at::Device /*device*/) {
  module_ = make_seeded(factory_, /*seed=*/0);
  const at::NoGradGuard no_grad;
  auto leaves = module_->named_parameters();
  for (const auto& [name, parameter] : adopted_parameters_) {
    at::Tensor& leaf = leaves[name];
    // A meta parameter gets its storage from its flat group, which takes the leaf's dtype for granted.
    const at::Tensor& local = parameter->local();
    leaf.set_data(local.is_meta() ? leaf.to(local.scalar_type()) : local.detach());
    parameter->replace_local(leaf);
  }
  auto buffers = module_->named_buffers();
  for (const auto& [name, buffer] : named_buffers()) {
    at::Tensor& tensor = buffers[name];
    tensor.set_data(buffer->local);
    buffer->local = tensor;
  }
}

void AdoptedModule::after_reset(std::uint64_t base_seed, const std::string& name) {
  const TorchModulePtr fresh = make_seeded(factory_, philox_key(base_seed, "init", name));
  const auto values = fresh->named_parameters();
  for (const auto& [own_name, parameter] : adopted_parameters_) parameter->copy_from(values[own_name]);
  const auto buffer_values = fresh->named_buffers();
  for (const auto& [own_name, buffer] : named_buffers()) buffer->local.copy_(buffer_values[own_name]);
}

torch::nn::Module& AdoptedModule::ready_module() const {
  D9D_CHECK(module_ != nullptr, StateError, "[modules::adopt] expected storage for ", canonical_name(),
            " before forward, got none. Call materialize() and reset_parameters().");
  const auto leaves = module_->named_parameters();
  for (const auto& [name, parameter] : adopted_parameters_) {
    D9D_CHECK(leaves[name].is_same(parameter->local()), StateError, "[modules::adopt] expected ", canonical_name(), ".",
              name,
              " to be the tensor that the torch::nn module computes with, got another: replacing the leaves of an "
              "adopted module is not built in this version.");
  }
  follow_mode();
  return *module_;
}

// The modules inside may have modes of their own, such as frozen norms in evaluation mode: they come back after an
// evaluation.
void AdoptedModule::follow_mode() const {
  if (module_->is_training() == is_training()) return;
  const auto all = module_->modules();
  if (!is_training()) {
    modes_.clear();
    for (const auto& each : all) modes_.push_back(each->is_training());
    return module_->eval();
  }
  if (modes_.size() != all.size()) return module_->train();
  for (std::size_t i = 0; i < all.size(); ++i) all[i]->train(modes_[i]);  // outer modules come before inner ones
}

void AdoptedModule::check_drew_nothing(const OperatorWatch& watch) const {
  D9D_CHECK(!watch.drawing_operator(), StateError, "[modules::adopt] expected ", canonical_name(), " (",
            module_->name(), ") to draw no random numbers in forward, but it did, by ", *watch.drawing_operator(),
            ". Set its dropout to 0 and put d9d::Dropout beside it.");
}

void AdoptedModule::on_step_finished(StepOutcome /*outcome*/) {
  if (buffer_ranks_.num_ranks() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<Work> broadcasts;
  for (const auto& [name, buffer] : named_buffers()) {
    broadcasts.push_back(buffer_ranks_.communicator()->broadcast(buffer->local, /*root=*/0));
  }
  for (Work& broadcast : broadcasts) broadcast.wait();
}

AdoptedModule::BuffersOfFirstRun::BuffersOfFirstRun(const AdoptedModule& module) {
  const auto buffers = module.named_buffers();
  if (buffers.empty() || !is_checkpointed()) return;
  const auto values = replayed([&] {
    std::vector<at::Tensor> copies;
    for (const auto& [name, buffer] : buffers) copies.push_back(buffer->local.clone());
    return copies;
  });
  if (!is_recomputing()) return;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor& buffer = buffers[i].second->local;
    replaced_.push_back({.buffer = buffer, .values = buffer.tensor_data()});
    // Does not use an operator, so that the tensor's version does not change either.
    buffer.unsafeGetTensorImpl()->shallow_copy_from(values[i].clone().getIntrusivePtr());
  }
}

AdoptedModule::BuffersOfFirstRun::~BuffersOfFirstRun() {
  for (const auto& [buffer, values] : replaced_) {
    buffer.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
  }
}

}  // namespace d9d::detail

namespace d9d {

void broadcast_buffers(Module& model, const DeviceMesh& ranks) {
  model.for_each_module([&](const std::string&, Module& module) {
    if (auto* const adopted = dynamic_cast<detail::AdoptedModule*>(&module)) adopted->set_buffer_ranks(ranks);
  });
}

}  // namespace d9d
