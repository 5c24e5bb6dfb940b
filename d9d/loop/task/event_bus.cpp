#include "d9d/loop/task/event_bus.h"

#include <exception>

#include "d9d/base/check.h"

namespace d9d {
namespace {

void check_context(std::string_view id, std::type_index known, std::type_index given) {
  D9D_CHECK(known == given, InternalError, "[loop::event] expected one context type for the event ", id,
            ", got two. Give one of the two events another id.");
}

}  // namespace

void EventBus::add(std::string_view id, std::type_index context, AnyHandler handler) {
  const auto entry = handlers_.try_emplace(std::string(id), Handlers{.context = context, .in_order = {}}).first;
  check_context(id, entry->second.context, context);
  entry->second.in_order.push_back(std::move(handler));
}

void EventBus::run(std::string_view id, std::type_index context, const void* value) {
  const auto entry = handlers_.find(id);
  if (entry == handlers_.end()) return;
  check_context(id, entry->second.context, context);
  const std::deque<AnyHandler>& handlers = entry->second.in_order;
  for (std::size_t i = 0; i < handlers.size(); ++i) {  // a handler may subscribe another, which runs too
    try {
      handlers[i](value);
    } catch (const std::exception& error) {
      std::throw_with_nested(StateError(cat("[loop::event] a handler of ", id, " failed: ", error.what())));
    }
  }
}

}  // namespace d9d
