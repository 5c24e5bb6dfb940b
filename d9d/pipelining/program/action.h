// The actions that a rank of a pipeline runs one after the other: values that can be compared, printed and parsed.
//
// Example
//   const RankProgram program = parse_rank_program("0F0 0SEND_F0 0F1|0B0");
//   to_text(program[2]);                                        // "0F1|0B0"
//   ForwardAction{.stage = {0}, .microbatch = {0}} == std::get<ForwardAction>(std::get<ComputeAction>(program[0]));
//
// Text: {stage}{symbol}{microbatch}, composed parts joined by a bar. Symbols: F forward, B whole backward, I the part
// of a backward that computes gradients of inputs, W the part that computes gradients of weights, SEND_F and SEND_B
// with the stage of the sender, RECV_F and RECV_B with the stage of the receiver.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace d9d {

struct StageIndex {  // index in the whole pipeline
  std::int64_t value = 0;
  auto operator<=>(const StageIndex&) const = default;
};
struct MicrobatchIndex {  // index in one step
  std::int64_t value = 0;
  auto operator<=>(const MicrobatchIndex&) const = default;
};

struct ForwardAction {
  static constexpr std::string_view kSymbol = "F";
  StageIndex stage;
  MicrobatchIndex microbatch;
  auto operator<=>(const ForwardAction&) const = default;
};
// Computes the gradients of inputs and weights.
struct BackwardAction {
  static constexpr std::string_view kSymbol = "B";
  StageIndex stage;
  MicrobatchIndex microbatch;
  auto operator<=>(const BackwardAction&) const = default;
};
// Computes the gradients of inputs; a BackwardWeightAction of the same stage and microbatch follows later.
struct BackwardInputAction {
  static constexpr std::string_view kSymbol = "I";
  StageIndex stage;
  MicrobatchIndex microbatch;
  auto operator<=>(const BackwardInputAction&) const = default;
};
struct BackwardWeightAction {
  static constexpr std::string_view kSymbol = "W";
  StageIndex stage;
  MicrobatchIndex microbatch;
  auto operator<=>(const BackwardWeightAction&) const = default;
};
using ComputeAction = std::variant<ForwardAction, BackwardAction, BackwardInputAction, BackwardWeightAction>;

// Sends the output of a forward to the next stage.
struct SendForwardAction {
  static constexpr std::string_view kSymbol = "SEND_F";
  StageIndex stage;  // the sender's
  MicrobatchIndex microbatch;
  auto operator<=>(const SendForwardAction&) const = default;
};
struct ReceiveForwardAction {
  static constexpr std::string_view kSymbol = "RECV_F";
  StageIndex stage;  // the receiver's
  MicrobatchIndex microbatch;
  auto operator<=>(const ReceiveForwardAction&) const = default;
};
// Sends the gradients of a stage's input to the stage before it.
struct SendBackwardAction {
  static constexpr std::string_view kSymbol = "SEND_B";
  StageIndex stage;  // the sender's
  MicrobatchIndex microbatch;
  auto operator<=>(const SendBackwardAction&) const = default;
};
struct ReceiveBackwardAction {
  static constexpr std::string_view kSymbol = "RECV_B";
  StageIndex stage;  // the receiver's
  MicrobatchIndex microbatch;
  auto operator<=>(const ReceiveBackwardAction&) const = default;
};
using MessageAction = std::variant<SendForwardAction, ReceiveForwardAction, SendBackwardAction, ReceiveBackwardAction>;

// At least two computations of one rank that may run at the same time: none uses the output of another.
struct ComposedAction {
  std::vector<ComputeAction> parts;
  auto operator<=>(const ComposedAction&) const = default;
};

using Action = std::variant<ComputeAction, MessageAction, ComposedAction>;
using RankProgram = std::vector<Action>;

template <class Alternative, class... Alternatives>
[[nodiscard]] bool holds(const std::variant<Alternatives...>& action) {
  return std::holds_alternative<Alternative>(action);
}

[[nodiscard]] StageIndex stage_of(const ComputeAction& action);
[[nodiscard]] StageIndex stage_of(const MessageAction& action);
[[nodiscard]] MicrobatchIndex microbatch_of(const ComputeAction& action);
[[nodiscard]] MicrobatchIndex microbatch_of(const MessageAction& action);

// Returns the computations of an action: the action itself, the parts of a composed action, or none for a message. The
// span is valid as long as `action`.
[[nodiscard]] std::span<const ComputeAction> compute_parts(const Action& action);

[[nodiscard]] std::string to_text(const ComputeAction& action);
[[nodiscard]] std::string to_text(const MessageAction& action);
[[nodiscard]] std::string to_text(const Action& action);
[[nodiscard]] std::string to_text(const RankProgram& program);  // joined by spaces

// Parses text in the form of to_text(). Throws ConfigError with the text that is not an action.
[[nodiscard]] Action parse_action(std::string_view text);
[[nodiscard]] RankProgram parse_rank_program(std::string_view text);

}  // namespace d9d
