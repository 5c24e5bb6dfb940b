#include "d9d/modules/module.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <unordered_set>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/core/dtensor/redistribute.h"
#include "d9d/core/error/error_place.h"

namespace d9d {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : name.empty() ? prefix : prefix + "." + name;
}

template <class Entries>
bool contains_name(const Entries& entries, const std::string& name) {
  return std::ranges::any_of(entries, [&](const auto& entry) { return entry.first == name; });
}

// Lists the entries that `own` returns for the module and all modules below, each object once.
template <class Entry, class Own>
class Collector {
 public:
  explicit Collector(const Own& own) : own_(own) {}
  std::vector<std::pair<std::string, Entry>> operator()(const Module& root) {
    visit(root, "");
    return std::move(found_);
  }

 private:
  void visit(const Module& module, const std::string& prefix) {
    for (const auto& [name, entry] : own_(module)) {
      if (seen_.insert(entry.get()).second) found_.emplace_back(join(prefix, name), entry);
    }
    for (const auto& [name, child] : module.named_children()) visit(*child, join(prefix, name));
  }

  const Own& own_;
  std::vector<std::pair<std::string, Entry>> found_;
  std::unordered_set<const void*> seen_;
};

template <class Entry, class Own>
std::vector<std::pair<std::string, Entry>> collect(const Module& root, const Own& own) {
  return Collector<Entry, Own>(own)(root);
}

template <class AnyModule, class Visit>
void visit_modules(AnyModule& module, const std::string& name, const Visit& visit) {
  visit(name, module);
  for (const auto& [child_name, child] : module.named_children()) {
    visit_modules(static_cast<AnyModule&>(*child), join(name, child_name), visit);
  }
}

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

}  // namespace

std::vector<std::pair<std::string, ParameterPtr>> Module::named_parameters() const {
  auto all = collect<ParameterPtr>(*this, [](const Module& module) { return module.parameters_; });
  std::unordered_set<std::string> seen;
  std::erase_if(all, [&](const auto& each) { return !seen.insert(each.first).second; });
  return all;
}

std::vector<std::pair<std::string, BufferPtr>> Module::named_buffers() const {
  return collect<BufferPtr>(*this, [](const Module& module) { return module.buffers_; });
}

std::vector<std::pair<std::string, std::shared_ptr<Module>>> Module::named_children() const { return children_; }

void Module::for_each_module(const std::function<void(const std::string& name, Module& module)>& visit) {
  visit_modules(*this, "", visit);
}

std::map<std::string, at::Tensor> Module::state_dict() const {
  std::map<std::string, at::Tensor> state;
  for (const auto& [name, parameter] : named_parameters()) state.emplace(name, parameter->stored().detach());
  for (const auto& [name, buffer] : named_buffers()) {
    if (buffer->is_persistent) state.emplace(name, buffer->local);
  }
  return state;
}

std::map<std::string, at::Tensor> Module::full_state_dict() const {
  std::map<std::string, at::Tensor> state = state_dict();
  const auto parameters = named_parameters();
  for (const auto& [name, parameter] : parameters) state[name] = full_tensor(parameter->dtensor());
  if (parameters.empty()) return state;
  const at::Device device = state.at(parameters.back().first).device();
  if (!device.is_cpu() && !device.is_meta())
    c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
  for (const auto& [name, parameter] : parameters) parameter->mesh().throw_if_failed();
  return state;
}

void Module::to(at::ScalarType dtype) {
  for (const auto& [name, parameter] : named_parameters()) parameter->to(dtype);
  for (const auto& [name, buffer] : named_buffers()) {
    if (buffer->follows_dtype && buffer->local.is_floating_point()) buffer->local.set_data(buffer->local.to(dtype));
  }
}

void Module::materialize(at::Device device) {
  const auto parameters = named_parameters();
  const auto allocate = [&](const std::string& name, const auto& work) {
    try {
      work();
    } catch (const c10::Error& error) {
      if (!is_out_of_memory(error)) throw;
      const double bytes =
          std::transform_reduce(parameters.begin(), parameters.end(), 0.0, std::plus(),
                                [](const auto& each) { return static_cast<double>(each.second->local().nbytes()); });
      throw StateError(cat("[modules::module] expected memory on ", device, " for the model, got none left at ", name,
                           ": this rank's parameters take ", bytes / kGiB,
                           " GiB, and training about 4 times as much. d9d_plan says what a job keeps and which changes "
                           "would help."));
    }
  };
  for (const auto& [name, parameter] : parameters) {
    allocate(name, [&, each = parameter] { each->materialize(device); });
  }
  for (const auto& [name, buffer] : named_buffers()) {
    allocate(name, [&, each = buffer] {
      each->local = at::empty(each->local.sizes(), each->local.options().device(device));
      each->is_initialized = false;
    });
  }
  for_each_module(
      [&](const std::string& name, Module& module) { allocate(name, [&] { module.after_materialize(device); }); });
  for_each_module([&](const std::string& name, Module& module) {
    allocate(name, [&] {
      for (const auto& hook : module.hooks()) hook->on_materialize(module, device);
    });
  });
}

void Module::reset_parameters(std::uint64_t base_seed) {
  const at::NoGradGuard no_grad;
  const auto stream = [&](const std::string& name) { return RandomStream{.key = philox_key(base_seed, "init", name)}; };
  for (const auto& [name, parameter] : named_parameters()) parameter->reset(stream(name));
  for (const auto& [name, buffer] : named_buffers()) {
    buffer->init(buffer->local, whole_window(buffer->local), stream(name));
    buffer->is_initialized = true;
  }
  random_clock_->base_seed = base_seed;
  std::unordered_set<const Module*> seen;  // a module with several names has the first of them
  for_each_module([&](const std::string& name, Module& module) {
    if (!seen.insert(&module).second) return;
    module.canonical_name_ = name;
    module.random_clock_ = random_clock_;
    module.after_reset(base_seed, name);
  });
}

void Module::check_initialized() const {
  std::string missing;
  const auto note = [&](const std::string& name, bool is_initialized) {
    if (!is_initialized) missing += (missing.empty() ? "" : ", ") + name;
  };
  for (const auto& [name, parameter] : named_parameters()) note(name, parameter->is_initialized());
  for (const auto& [name, buffer] : named_buffers()) note(name, buffer->is_initialized);
  D9D_CHECK(missing.empty(), StateError,
            "[modules::module] expected values in every parameter and buffer, got none in {", missing,
            "}. Call reset_parameters() after materialize(), or load a checkpoint that has them.");
}

void Module::train(bool is_training) {
  for_each_module([&](const std::string&, Module& module) { module.is_training_ = is_training; });
}

void Module::set_backward_follows(bool follows) {
  for_each_module([&](const std::string&, Module& module) { module.backward_follows_ = follows; });
}

void Module::set_requires_grad(bool requires_grad) {
  for (const auto& [name, parameter] : named_parameters()) parameter->set_requires_grad(requires_grad);
}

void Module::set_activation_plan(const ActivationPlan& plan) {
  D9D_CHECK(std::ranges::count(activation_plans(), plan) > 0, ConfigError, "[modules::module] expected a plan for ",
            "activations that ", canonical_name_.empty() ? "the module" : canonical_name_,
            " can follow, got recompute = ", enum_name(plan.recompute), plan.offloads ? " with offload" : "",
            activation_plans().empty() ? ". It has none." : ". Choose another of activation_plans().");
}

void Module::finish_step(StepOutcome outcome) {
  const at::NoGradGuard no_grad;
  for_each_module([&](const std::string&, Module& module) { module.on_step_finished(outcome); });
}

std::map<std::string, at::Tensor> Module::step_statistics() const {
  std::map<std::string, at::Tensor> all;
  visit_modules(*this, "", [&](const std::string& path, const Module& module) {
    for (const auto& [name, value] : module.own_step_statistics())
      all.emplace(path.empty() ? name : path + "/" + name, value);
  });
  return all;
}

const RandomClockPtr& Module::random_clock() const {
  D9D_CHECK(!random_clock_->is_captured, ConfigError,
            "[modules::random_clock] expected no random numbers in a captured step, got a random layer in training",
            canonical_name_.empty() ? "" : ": ", canonical_name_,
            ". Set trainer.cuda_graph to null, or its probability to 0.");
  return random_clock_;
}

void Module::set_random_clock(const RandomClockPtr& clock) {
  for_each_module([&](const std::string&, Module& module) { module.random_clock_ = clock; });
}

void Module::check_new_name(const std::string& name) const {
  D9D_CHECK(!name.empty() && name.find('.') == std::string::npos, ConfigError,
            "[modules::module] expected a name without dots, got '", name,
            "'. Children of a ModuleList have numbers as names.");
  D9D_CHECK(!contains_name(parameters_, name) && !contains_name(buffers_, name) && !contains_name(children_, name),
            ConfigError, "[modules::module] expected distinct names in a module, got '", name, "' twice.");
}

ParameterPtr Module::register_parameter(const std::string& name, ParameterSpec spec) {
  return register_parameter(name, std::make_shared<Parameter>(std::move(spec)));
}

ParameterPtr Module::register_parameter(const std::string& name, ParameterPtr shared) {
  check_new_name(name);
  parameters_.emplace_back(name, shared);
  return shared;
}

BufferPtr Module::register_buffer(const std::string& name, BufferSpec spec) {
  check_new_name(name);
  D9D_CHECK(spec.init != nullptr, ConfigError, "[modules::module] expected an initializer for buffer '", name,
            "', got none.");
  const at::TensorOptions options = at::TensorOptions(at::kMeta).dtype(spec.dtype);
  buffers_.emplace_back(name, std::make_shared<Buffer>(Buffer{.local = at::empty(spec.shape, options),
                                                              .init = std::move(spec.init),
                                                              .is_persistent = spec.is_persistent,
                                                              .follows_dtype = spec.follows_dtype}));
  return buffers_.back().second;
}

void Module::register_child(const std::string& name, std::shared_ptr<Module> child) {
  check_new_name(name);
  D9D_CHECK(child != nullptr, ConfigError, "[modules::module] expected a module as '", name, "', got null.");
  children_.emplace_back(name, std::move(child));
}

void Module::remove_child(const std::string& name) {
  std::erase_if(children_, [&](const auto& child) { return child.first == name; });
}

void Module::register_unnamed(std::shared_ptr<Module> child) {
  D9D_CHECK(child != nullptr, ConfigError, "[modules::module] expected a module, got null.");
  children_.emplace_back("", std::move(child));
}

namespace detail {

void name_module_of_error(const Module& module) {
  if (!module.canonical_name().empty() && !has_error_place()) add_error_place("in " + module.canonical_name());
}

void note_buffers(const Module& module) {
  for (const auto& [name, buffer] : module.buffers_) {
    note_state(join(module.canonical_name(), name), std::shared_ptr<const at::Tensor>(buffer, &buffer->local));
  }
}

}  // namespace detail

}  // namespace d9d
