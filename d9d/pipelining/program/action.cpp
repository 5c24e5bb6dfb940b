#include "d9d/pipelining/program/action.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "d9d/base/check.h"

namespace d9d {
namespace {

template <class... Alternatives>
std::string symbol_text(const std::variant<Alternatives...>& action) {
  return std::visit(
      [](const auto& one) {
        return std::to_string(one.stage.value) + std::string(one.kSymbol) + std::to_string(one.microbatch.value);
      },
      action);
}

StageIndex stage_in(const auto& action) {
  return std::visit([](const auto& one) { return one.stage; }, action);
}
MicrobatchIndex microbatch_in(const auto& action) {
  return std::visit([](const auto& one) { return one.microbatch; }, action);
}

// Removes the number at the beginning of `text` and returns it; nullopt if there is none.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0 || text.front() == '-') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

struct Words {
  std::int64_t stage;
  std::string_view symbol;
  std::int64_t microbatch;
};

std::optional<Words> split_words(std::string_view text) {
  const auto stage = take_number(text);
  const auto digits = text.find_first_of("0123456789");
  if (!stage || digits == std::string_view::npos) return std::nullopt;
  const std::string_view symbol = text.substr(0, digits);
  text.remove_prefix(digits);
  const auto microbatch = take_number(text);
  if (!microbatch || !text.empty()) return std::nullopt;
  return Words{.stage = *stage, .symbol = symbol, .microbatch = *microbatch};
}

template <class... Alternatives>
bool assign_by_symbol(const Words& words, std::variant<Alternatives...>& action) {
  const auto assign = [&]<class T>(T one) {
    if (words.symbol != T::kSymbol) return false;
    one.stage = {words.stage};
    one.microbatch = {words.microbatch};
    action = one;
    return true;
  };
  return (assign(Alternatives{}) || ...);
}

Action parse_one(std::string_view text) {
  const auto words = split_words(text);
  ComputeAction compute;
  if (words && assign_by_symbol(*words, compute)) return compute;
  MessageAction message;
  if (words && assign_by_symbol(*words, message)) return message;
  throw ConfigError(
      cat("[pipelining::program] expected an action {stage}{symbol}{microbatch} with a symbol of F, B, I, W, "
          "SEND_F, RECV_F, SEND_B, RECV_B, got '",
          text, "'. Correct the program."));
}

}  // namespace

StageIndex stage_of(const ComputeAction& action) { return stage_in(action); }
StageIndex stage_of(const MessageAction& action) { return stage_in(action); }
MicrobatchIndex microbatch_of(const ComputeAction& action) { return microbatch_in(action); }
MicrobatchIndex microbatch_of(const MessageAction& action) { return microbatch_in(action); }

std::span<const ComputeAction> compute_parts(const Action& action) {
  if (const auto* compute = std::get_if<ComputeAction>(&action)) return {compute, 1};
  if (const auto* composed = std::get_if<ComposedAction>(&action)) return composed->parts;
  return {};
}

std::string to_text(const ComputeAction& action) { return symbol_text(action); }
std::string to_text(const MessageAction& action) { return symbol_text(action); }

std::string to_text(const Action& action) {
  if (const auto* message = std::get_if<MessageAction>(&action)) return to_text(*message);
  std::string text;
  for (const auto& part : compute_parts(action)) text += (text.empty() ? "" : "|") + to_text(part);
  return text;
}

std::string to_text(const RankProgram& program) {
  std::string text;
  for (const auto& action : program) text += (text.empty() ? "" : " ") + to_text(action);
  return text;
}

Action parse_action(std::string_view text) {
  if (text.find('|') == std::string_view::npos) return parse_one(text);
  ComposedAction composed;
  for (std::size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find('|', begin), text.size());
    const Action part = parse_one(text.substr(begin, end - begin));
    D9D_CHECK(holds<ComputeAction>(part), ConfigError,
              "[pipelining::program] expected computations to be composed, got '", text, "'. List ", to_text(part),
              " as an action of its own.");
    composed.parts.push_back(std::get<ComputeAction>(part));
    begin = end + 1;
  }
  return composed;
}

RankProgram parse_rank_program(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  RankProgram program;
  for (auto begin = text.find_first_not_of(kSpaces); begin != std::string_view::npos;) {
    const auto end = std::min(text.find_first_of(kSpaces, begin), text.size());
    program.push_back(parse_action(text.substr(begin, end - begin)));
    begin = text.find_first_not_of(kSpaces, end);
  }
  return program;
}

}  // namespace d9d
