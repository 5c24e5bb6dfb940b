// A handler that takes another event's context: the compiler's message must name the concept.
// expect: EventHandler
#include "d9d/loop/event/event_bus.h"

struct Number {};
struct Text {};

void use(d9d::EventBus& events) {
  constexpr d9d::Event<Number> kNumber{"number"};
  events.subscribe(kNumber, [](const Text&) {});
}
