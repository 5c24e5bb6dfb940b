#include "d9d/core/autograd/operator_watch.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

namespace d9d {
namespace {

thread_local OperatorWatch* innermost = nullptr;

// Properties of an operator, read from its schema.
struct Operator {
  bool may_draw = false;
  // Arguments of an operator that may draw; it draws nothing if one of these is 0 or false.
  std::vector<std::size_t> strengths;
  std::optional<std::size_t> num_layers;  // argument of recurrent nets, whose dropout is between layers
  std::optional<std::size_t> writes_if;   // the argument `training` of batch_norm, which then writes its statistics
};

Operator read_schema(const at::RecordFunction& call) {
  Operator read;
  const std::optional<c10::OperatorName> name = call.operator_name();
  if (!name) return read;
  const auto handle = c10::Dispatcher::singleton().findOp(*name);
  if (!handle || !handle->hasSchema()) return read;
  // _nested_tensor_softmax_with_shape has the tag but draws nothing.
  read.may_draw =
      handle->hasTag(at::Tag::nondeterministic_seeded) && name->name != "aten::_nested_tensor_softmax_with_shape";
  const auto& arguments = handle->schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i].name();
    const bool is_mode = argument == "train" || argument == "training";
    if (is_mode || argument == "p" || argument == "dropout_p" || argument == "dropout") read.strengths.push_back(i);
    if (argument == "num_layers") read.num_layers = i;
    if (is_mode && name->name == "aten::_batch_norm_impl_index") read.writes_if = i;
  }
  return read;
}

const Operator& operator_of(const at::RecordFunction& call) {
  // The key is the address of the schema's name, since overloads have equal names at different addresses.
  thread_local std::unordered_map<const char*, Operator> known;
  const auto [entry, is_new] = known.try_emplace(call.name());
  if (is_new) entry->second = read_schema(call);
  return entry->second;
}

bool is_off(const c10::IValue& strength) {
  return (strength.isBool() && !strength.toBool()) || (strength.isDouble() && strength.toDouble() == 0);
}

std::unique_ptr<at::ObserverContext> show_all(const at::RecordFunction& call) {
  for (OperatorWatch* watch = innermost; watch != nullptr; watch = watch->outer()) watch->see(call);
  return nullptr;
}

}  // namespace

OperatorWatch::OperatorWatch(std::vector<WatchedMemory> memory)
    : memory_(std::move(memory)), outer_(std::exchange(innermost, this)) {
  if (outer_ != nullptr) return;
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&show_all).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

OperatorWatch::~OperatorWatch() {
  innermost = outer_;
  if (outer_ == nullptr) at::removeCallback(callback_);
}

void OperatorWatch::see(const at::RecordFunction& call) {
  const Operator& seen = operator_of(call);
  const auto inputs = call.inputs();
  const auto is_off_at = [&](std::size_t i) { return i < inputs.size() && is_off(inputs[i]); };
  const bool has_one_layer =
      seen.num_layers && *seen.num_layers < inputs.size() && inputs[*seen.num_layers] == c10::IValue(std::int64_t{1});
  if (seen.may_draw && !drawing_operator_ && !has_one_layer && std::ranges::none_of(seen.strengths, is_off_at)) {
    drawing_operator_ = call.name();
  }
  if (memory_.empty() || first_use_) return;
  const bool writes_silently = seen.writes_if && !is_off_at(*seen.writes_if);
  const auto look_at = [&](const at::Tensor& input) {
    if (!input.defined() || !input.has_storage()) return;
    for (const auto& [name, memory, may_be_read] : memory_) {
      if (may_be_read && !writes_silently) continue;
      if (input.storage().is_alias_of(memory)) first_use_ = Use{.tensor = name, .by = call.name()};
    }
  };
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) look_at(input.toTensor());
    if (!input.isList()) continue;
    for (const c10::IValue& each : input.toListRef()) {
      if (each.isTensor()) look_at(each.toTensor());
    }
  }
}

}  // namespace d9d
