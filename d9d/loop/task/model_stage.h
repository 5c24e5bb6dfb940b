// A pipeline stage as the loop runs it. A model in one piece is one stage.
//
// Example
//   return as_model_stage<MyTypes>(model);        // model(input, shared) returns Types::Output
//
// A model that can be split into stages also takes the output of the previous stage, Types::Transfer, in place of the
// input, returns a std::variant of Transfer and Output, and declares the tensors that stages exchange:
//
//   Transfer stage_transfer(const Input& input, StageBoundary boundary) const;   // on the meta device, from shapes
//
// It may declare how its layers are distributed over stages, so that schedule = auto can propose virtual layers that
// balance the stages:
//
//   std::optional<LayerDistribution> layer_distribution() const;
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "d9d/loop/task/task_types.h"
#include "d9d/modules/module.h"
#include "d9d/pipelining/api/stage_boundary.h"
#include "d9d/pipelining/api/stage_info.h"

namespace d9d {

template <class Types>
using ModelForward = std::function<OutputOf<Types>(const InputOf<Types>&, const SharedOf<Types>&)>;

// The functions of a stage of a model in several stages. `Arrived` is the input of the stage: the model's input on the
// first stage (alternative 0), the output of the previous stage on the others (alternative 1). The loop calls
// `last_forward` on the last stage and `forward` on all others.
template <class Types>
struct ModelPart {
  using Arrived = std::variant<InputOf<Types>, TransferOf<Types>>;
  std::function<TransferOf<Types>(const Arrived&, const SharedOf<Types>&)> forward;
  std::function<OutputOf<Types>(const Arrived&, const SharedOf<Types>&)> last_forward;
  std::function<TransferOf<Types>(const InputOf<Types>&, StageBoundary)> transfer;
};

template <class Types>
struct ModelStage {
  std::shared_ptr<Module> module;
  ModelForward<Types> forward;                   // used if the model is one stage
  ModelPart<Types> part = {};                    // null functions: the model cannot be split
  std::optional<LayerDistribution> layers = {};  // of the whole model; none if the model declares none
};

namespace detail {
template <class T, class Result>
inline constexpr bool kIsOrHolds = std::is_convertible_v<Result, T>;
template <class T, class... Alternatives>
inline constexpr bool kIsOrHolds<T, std::variant<Alternatives...>> = (std::is_same_v<T, Alternatives> || ...);

// Throws StateError: a stage returned an Output in place of a Transfer, or the reverse.
[[noreturn]] void refuse_other_end();

// Returns `result` as a T, or the T in it if it is a variant.
template <class T, class Result>
[[nodiscard]] T taken_as(Result&& result) {
  if constexpr (std::is_convertible_v<Result, T>) {
    return T(std::forward<Result>(result));
  } else {
    if (!std::holds_alternative<T>(result)) refuse_other_end();
    return std::get<T>(std::forward<Result>(result));
  }
}

// Names are qualified, since detail has structs called InputOf and so on.
template <class Types, class Model>
concept CanBeCut = kHasTransfer<Types> &&
    requires(const ModulePtr<Model>& model, const d9d::InputOf<Types>& input, const d9d::TransferOf<Types>& transfer,
             const d9d::SharedOf<Types>& shared) {
  { model->stage_transfer(input, StageBoundary::kIncoming) } -> std::convertible_to<d9d::TransferOf<Types>>;
  requires kIsOrHolds < d9d::TransferOf<Types>,
  decltype(model(input, shared)) > ;
  requires kIsOrHolds < d9d::OutputOf<Types>,
  decltype(model(transfer, shared)) > ;
};

template <class Model>
concept SaysLayers = requires(const ModulePtr<Model>& model) {
  { model->layer_distribution() } -> std::convertible_to<std::optional<LayerDistribution>>;
};

template <class Types, class Model>
[[nodiscard]] ModelPart<Types> part_of(const ModulePtr<Model>& model) {
  using Arrived = typename ModelPart<Types>::Arrived;
  using Shared = d9d::SharedOf<Types>;
  const auto call = []<class Result>(const ModulePtr<Model>& stage, const Arrived& arrived, const Shared& shared,
                                     std::type_identity<Result>) -> Result {
    return arrived.index() == 0 ? taken_as<Result>(stage(std::get<0>(arrived), shared))
                                : taken_as<Result>(stage(std::get<1>(arrived), shared));
  };
  return {.forward =
              [=](const Arrived& arrived, const Shared& shared) {
                return call(model, arrived, shared, std::type_identity<d9d::TransferOf<Types>>());
              },
          .last_forward =
              [=](const Arrived& arrived, const Shared& shared) {
                return call(model, arrived, shared, std::type_identity<d9d::OutputOf<Types>>());
              },
          .transfer = [=](const d9d::InputOf<Types>& input,
                          StageBoundary boundary) { return model->stage_transfer(input, boundary); }};
}
}  // namespace detail

// Returns the stage of a model. model(input, shared) must return an Output, or a std::variant that holds it.
template <class Types, class Model>
[[nodiscard]] ModelStage<Types> as_model_stage(const ModulePtr<Model>& model) {
  using Input = InputOf<Types>;
  using Shared = SharedOf<Types>;
  using Output = OutputOf<Types>;
  constexpr bool kTakesInputs = std::is_invocable_v<const ModulePtr<Model>&, const Input&, const Shared&>;
  static_assert(kTakesInputs,
                "the model of as_model_stage<Types> needs the member `forward(const Types::Input&, const "
                "Types::Shared&)`: change its arguments, or Types::Input and Types::Shared");
  if constexpr (kTakesInputs) {
    using Result = std::invoke_result_t<const ModulePtr<Model>&, const Input&, const Shared&>;
    static_assert(detail::kIsOrHolds<Output, Result>,
                  "forward of the model of as_model_stage<Types> must return Types::Output, or a std::variant that "
                  "holds it: change what it returns, or Types::Output");
    if constexpr (detail::kIsOrHolds<Output, Result>) {
      ModelStage<Types> stage{.module = model.shared(), .forward = [model](const Input& input, const Shared& shared) {
                                return detail::taken_as<Output>(model(input, shared));
                              }};
      if constexpr (detail::CanBeCut<Types, Model>) stage.part = detail::part_of<Types>(model);
      if constexpr (detail::SaysLayers<Model>) stage.layers = model->layer_distribution();
      return stage;
    }
  }
  return {};
}

}  // namespace d9d
