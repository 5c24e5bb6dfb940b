// Typed events: run code of a task or a model provider at fixed points of a job.
//
// Example
//   events.subscribe(kTrainStepPost, [](const TrainStep& step) { publish(step.schedule.current_step()); });
//
//   Subscription warm_up = events.subscribe(kTrainStepPre, [](const TrainStep& step) { ... });
//   warm_up.end();                                     // the handler is not called any more
//
// An object may list its handlers, and have state that checkpoints save:
//   struct EarlyStop {
//     void after_evaluation(const FinishedEvaluation& evaluation) { ... }
//     static constexpr auto handlers() { return std::tuple(on(kTrainEvaluationPost, &EarlyStop::after_evaluation)); }
//     nlohmann::json state() const { return num_worse; }
//     void load_state(const nlohmann::json& state) { num_worse = state; }
//     int num_worse = 0;
//   } early_stop;
//   events.attach("early_stop", early_stop);
//
// A program's own events work the same way:
//   struct Evaluated { double accuracy; };
//   inline constexpr Event<Evaluated> kEvaluated{"my_project.evaluated"};
//   events.trigger(kEvaluated, {.accuracy = 0.9});
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeindex>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace d9d {

// An event is identified by its id. `Context`: the argument of its handlers.
template <class Context>
struct Event {
  std::string_view id;  // must outlive the bus
};

template <class Handler, class Context>
concept EventHandler = std::copy_constructible<Handler> && std::invocable<Handler&, const Context&>;

namespace detail {

struct SubscribedHandler {
  std::function<void(const void* context)> run;
  bool is_active = true;
};

}  // namespace detail

// A handle to a subscription. Destroying the handle does not end the subscription.
class Subscription {
 public:
  Subscription() = default;  // refers to no handler
  // Ends the subscription: the handler is not called any more, not even by a trigger() that is running. end() may be
  // called by the handler itself, several times, and after the bus is destroyed.
  void end() {
    if (const auto handler = handler_.lock()) handler->is_active = false;
  }

 private:
  friend class EventBus;
  explicit Subscription(const std::shared_ptr<detail::SubscribedHandler>& handler) : handler_(handler) {}
  std::weak_ptr<detail::SubscribedHandler> handler_;
};

// An entry of Object::handlers(): calls this member function at this event.
template <class Context, class Object>
struct MemberHandler {
  Event<Context> event;
  void (Object::*member)(const Context& context);
};
template <class Context, class Object>
[[nodiscard]] constexpr MemberHandler<Context, Object> on(const Event<Context>& event,
                                                          void (Object::*member)(const Context& context)) {
  return {event, member};
}

// An object whose state checkpoints save. All ranks must have the same state.
template <class Object>
concept HandlerWithState = requires(Object& object, const nlohmann::json& state) {
  { std::as_const(object).state() } -> std::convertible_to<nlohmann::json>;
  object.load_state(state);
};

namespace detail {

// Whether it has either member, with any signature.
template <class Object>
concept SaysState = requires(Object& object) {
  object.state();
}
|| requires { &Object::load_state; };

}  // namespace detail

// Local: each rank has its own bus, used only from the thread that runs the job.
class EventBus {
 public:
  // `handler`: callable with const Context&; any other does not compile. Throws InternalError if an event with the same
  // id has another Context.
  template <class Context, class Handler>
  Subscription subscribe(const Event<Context>& event, Handler handler) {
    static_assert(std::copy_constructible<Handler>,
                  "a handler of an event must be copyable: capture a std::shared_ptr or a reference");
    static_assert(std::invocable<Handler&, const Context&>,
                  "a handler of an Event<Context> takes `const Context&`: this one takes another event's context");
    if constexpr (EventHandler<Handler, Context>) {
      return add(event.id, typeid(Context), [handler = std::move(handler)](const void* context) mutable {
        std::invoke(handler, *static_cast<const Context*>(context));
      });
    } else {
      return {};
    }
  }

  // Subscribes the members that Object::handlers() lists. `object` is borrowed while the job runs. If it has state,
  // checkpoints save it under `name`, and a resumed job loads it: before kTrainCheckpointLoaded or, if the object is
  // attached later, here. Throws ConfigError if an object with state was attached under this name before.
  template <class Object>
  std::vector<Subscription> attach(const std::string& name, Object& object) {
    static_assert(HandlerWithState<Object> || !detail::SaysState<Object>,
                  "an attached object with state needs both `nlohmann::json state() const` and "
                  "`void load_state(const nlohmann::json& state)`: this one has one of them, or another signature");
    std::vector<Subscription> subscriptions;
    const auto subscribe_member = [&]<class Context>(const MemberHandler<Context, Object>& handler) {
      subscriptions.push_back(subscribe(
          handler.event, [&object, member = handler.member](const Context& context) { (object.*member)(context); }));
    };
    std::apply([&](const auto&... handlers) { (subscribe_member(handlers), ...); }, Object::handlers());
    if constexpr (HandlerWithState<Object>) {
      keep_state(name, {.state = [&object] { return nlohmann::json(std::as_const(object).state()); },
                        .load = [&object](const nlohmann::json& state) { object.load_state(state); }});
    }
    return subscriptions;
  }
  // The states of attached objects by name, and back. Called by the trainer.
  [[nodiscard]] nlohmann::json states() const;
  void load_states(const nlohmann::json& states);
  // The names of the loaded states whose objects are not attached yet.
  [[nodiscard]] std::vector<std::string> untaken_states() const;

  // Runs the handlers synchronously, in the order in which they subscribed; handlers that subscribe meanwhile run last.
  // If a handler throws, the remaining handlers do not run, and trigger() throws a StateError that names the event,
  // with the original exception nested in it (std::rethrow_if_nested).
  template <class Context>
  void trigger(const Event<Context>& event, const std::type_identity_t<Context>& context) {
    run(event.id, typeid(Context), &context);
  }

  template <class Context>
  [[nodiscard]] bool has_handlers(const Event<Context>& event) const {
    return has(event.id);
  }

  // Triggers `pre`, runs body(), triggers `post` unless the body threw.
  template <class Context, std::invocable Body>
  void run_between(const Event<Context>& pre, const Event<Context>& post, const std::type_identity_t<Context>& context,
                   const Body& body) {
    trigger(pre, context);
    body();
    trigger(post, context);
  }

 private:
  struct Handlers {
    std::type_index context;
    std::vector<std::shared_ptr<detail::SubscribedHandler>> in_order;
  };

  struct AttachedState {
    std::function<nlohmann::json()> state;
    std::function<void(const nlohmann::json& state)> load;
  };
  void keep_state(const std::string& name, AttachedState attached);
  Subscription add(std::string_view id, std::type_index context, std::function<void(const void* context)> handler);
  [[nodiscard]] bool has(std::string_view id) const;
  void run(std::string_view id, std::type_index context, const void* value);

  std::map<std::string, Handlers, std::less<>> handlers_;
  std::map<std::string, AttachedState> attached_;
  nlohmann::json loaded_ = nlohmann::json::object();  // states of objects that are not attached yet
};

}  // namespace d9d
