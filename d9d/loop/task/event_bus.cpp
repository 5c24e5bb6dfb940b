#include "d9d/loop/task/event_bus.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/core/device/named_range.h"
#include "d9d/core/error/error_place.h"

namespace d9d {
namespace {

void check_context(std::string_view id, std::type_index known, std::type_index given) {
  D9D_CHECK(known == given, InternalError, "[loop::event] expected one context type for the event ", id,
            ", got two. Give one of the two events another id.");
}

}  // namespace

Subscription EventBus::add(std::string_view id, std::type_index context,
                           std::function<void(const void* context)> handler) {
  const auto entry = handlers_.try_emplace(std::string(id), Handlers{.context = context, .in_order = {}}).first;
  check_context(id, entry->second.context, context);
  auto& handlers = entry->second.in_order;
  handlers.push_back(std::make_shared<detail::SubscribedHandler>(std::move(handler)));
  return Subscription(handlers.back());
}

void EventBus::keep_state(const std::string& name, AttachedState attached) {
  const auto [entry, is_new] = attached_.emplace(name, std::move(attached));
  D9D_CHECK(is_new, ConfigError, "[loop::event] expected another name for each object with state, got '", name,
            "' twice. Attach the second one under another name.");
  if (loaded_.contains(name)) entry->second.load(loaded_.at(name));
}

nlohmann::json EventBus::states() const {
  nlohmann::json states = loaded_;  // those of objects that this program attaches later, or not any more
  for (const auto& [name, attached] : attached_) states[name] = attached.state();
  return states;
}

void EventBus::load_states(const nlohmann::json& states) {
  loaded_ = states;
  for (const auto& [name, attached] : attached_) {
    if (states.contains(name)) attached.load(states.at(name));
  }
}

std::vector<std::string> EventBus::untaken_states() const {
  std::vector<std::string> names;
  for (const auto& [name, state] : loaded_.items()) {
    if (!attached_.contains(name)) names.push_back(name);
  }
  return names;
}

bool EventBus::has(std::string_view id) const {
  const auto entry = handlers_.find(id);
  return entry != handlers_.end() &&
         std::ranges::any_of(entry->second.in_order, [](const auto& handler) { return handler->is_active; });
}

void EventBus::run(std::string_view id, std::type_index context, const void* value) {
  const auto entry = handlers_.find(id);
  if (entry == handlers_.end()) return;
  check_context(id, entry->second.context, context);
  const NamedRange range([&] { return std::string(id); });
  auto& handlers = entry->second.in_order;
  for (std::size_t i = 0; i < handlers.size(); ++i) {  // a handler may subscribe another, which runs too
    const std::shared_ptr<detail::SubscribedHandler> handler = handlers[i];
    if (!handler->is_active) continue;
    try {
      handler->run(value);
    } catch (const std::exception& error) {
      std::throw_with_nested(StateError(cat("[loop::event] a handler of ", id, " failed: ", error_line(error))));
    }
  }
}

}  // namespace d9d
