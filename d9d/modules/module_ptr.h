// A shared handle to a module. Calling it runs forward with the module's hooks and, if enabled, activation
// checkpointing; `->` accesses the module itself.
#pragma once

#include <exception>
#include <memory>
#include <tuple>
#include <utility>

#include "d9d/core/autograd/checkpoint.h"
#include "d9d/core/tree/tree.h"
#include "d9d/modules/module.h"
#include "d9d/modules/module_ranges.h"

namespace d9d {

namespace detail {

// Called in a catch block: adds the module's name to the exception.
void name_module_of_error(const Module& module);
// Called in a checkpointed body before it uses the module: notes its buffers (note_state).
void note_buffers(const Module& module);

template <class Tree>
void add_tensor_refs(Tree& tree, TensorRefs& refs) {
  if constexpr (TensorTree<Tree>) tree_for_each_leaf(tree, [&](at::Tensor& leaf) { refs.emplace_back(leaf); });
}
template <class Tree>
[[nodiscard]] TensorRefs tensor_refs(Tree& tree) {
  TensorRefs refs;
  add_tensor_refs(tree, refs);
  return refs;
}

}  // namespace detail

template <class T>
class ModulePtr {
 public:
  ModulePtr() = default;
  ModulePtr(std::nullptr_t) {}  // NOLINT: an absent optional child
  explicit ModulePtr(std::shared_ptr<T> module) : module_(std::move(module)) {}
  template <class Derived>
  requires std::is_base_of_v<T, Derived> ModulePtr(const ModulePtr<Derived>& other)
      : module_(other.shared()) {}  // NOLINT: converts as shared_ptr does

  [[nodiscard]] T* operator->() const { return module_.get(); }
  [[nodiscard]] T& operator*() const { return *module_; }
  [[nodiscard]] const std::shared_ptr<T>& shared() const { return module_; }
  explicit operator bool() const { return module_ != nullptr; }

  // Tensors may stand anywhere in the arguments and the result (core/tree). An error of forward or of a hook names the
  // innermost module that was called in this way.
  template <class Self = T, class... Args>
  requires requires(Self& self, const Args&... args) { self.forward(args...); }
  auto operator()(const Args&... args) const -> decltype(std::declval<Self&>().forward(args...)) {
    static_assert(ListsItsTensors<std::remove_cvref_t<decltype(std::declval<Self&>().forward(args...))>>,
                  "the struct that forward returns must list its members in `static constexpr auto fields()` "
                  "(d9d/base/record.h), so that hooks and checkpointing find tensors in it");
    const detail::ModuleRange range(*module_);
    try {
      if (is_checkpointed()) detail::note_buffers(*module_);
      return call(args...);
    } catch (const std::exception&) {
      detail::name_module_of_error(*module_);
      throw;
    }
  }

 private:
  // Inlined, so that a stack trace shows few functions of the library.
  template <class Self = T, class... Args>
  [[gnu::always_inline]] auto call(const Args&... args) const -> decltype(std::declval<Self&>().forward(args...)) {
    if (module_->hooks().empty() && !module_->checkpoints_activations()) return module_->forward(args...);
    if (module_->hooks().empty()) return run(args...);
    std::tuple<Args...> arguments(args...);
    const TensorRefs inputs = detail::tensor_refs(arguments);
    for (const auto& hook : module_->hooks()) hook->before_forward(*module_, inputs);
    auto output = std::apply([this](const Args&... arg) { return run(arg...); }, arguments);
    const TensorRefs outputs = detail::tensor_refs(output);
    for (auto hook = module_->hooks().rbegin(); hook != module_->hooks().rend(); ++hook) {
      (*hook)->after_forward(*module_, outputs);
    }
    return output;
  }

  template <class Self = T, class... Args>
  auto run(const Args&... args) const -> decltype(std::declval<Self&>().forward(args...)) {
    if (!module_->checkpoints_activations()) return module_->forward(args...);
    return checkpoint_with(
        module_->checkpoint_options(),
        [module = *this](const Args&... arg) { return module.run_in_checkpoint(arg...); }, args...);
  }

  template <class Self = T, class... Args>
  auto run_in_checkpoint(const Args&... args) const -> decltype(std::declval<Self&>().forward(args...)) {
    try {
      detail::note_buffers(*module_);
      return module_->forward(args...);
    } catch (const std::exception&) {
      detail::name_module_of_error(*module_);
      throw;
    }
  }

  std::shared_ptr<T> module_;
};

template <class T, class... Args>
ModulePtr<T> make_module(Args&&... args) {
  constexpr bool kIsModule = std::is_base_of_v<Module, T>;
  constexpr bool kIsBuilt = std::is_constructible_v<T, Args...>;
  static_assert(kIsModule,
                "make_module<T> and register_module<T> need a class T that derives from d9d::Module; adopt() "
                "(d9d/modules/adopt.h) wraps a module of torch::nn");
  static_assert(
      !kIsModule || kIsBuilt,
      "make_module<T> and register_module<T> call a constructor of T, and none takes these arguments: compare "
      "their number and types (braces {...} need the name of their type)");
  if constexpr (kIsModule && kIsBuilt) {
    return ModulePtr<T>(std::make_shared<T>(std::forward<Args>(args)...));
  } else {
    return nullptr;
  }
}

}  // namespace d9d
