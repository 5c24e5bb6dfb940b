#include "d9d/pipelining/simulator/chrome_trace.h"

#include <nlohmann/json.hpp>

#include "d9d/pipelining/simulator/memory.h"

namespace d9d {
namespace {

using nlohmann::json;

const char* category_of(const ComputeAction& action) {
  if (holds<ForwardAction>(action)) return "forward";
  if (holds<BackwardAction>(action)) return "backward";
  return holds<BackwardInputAction>(action) ? "backward of inputs" : "backward of weights";
}

// Composed computations overlap, but the slices of a thread of the trace must nest: the computation that is composed
// with a forward gets a thread of its own.
std::int64_t thread_of(const ComputeSpan& span) {
  return 2 * span.rank + (span.is_composed && !holds<ForwardAction>(span.action) ? 1 : 0);
}

}  // namespace

std::string chrome_trace(const Simulation& run, const PipelineCosts& costs, double microseconds_per_unit) {
  json events = json::array();
  const auto add = [&](const char* phase, const std::string& name, std::int64_t thread, double time, json more) {
    json event = {{"ph", phase}, {"name", name}, {"pid", 0}, {"tid", thread}, {"ts", time * microseconds_per_unit}};
    event.update(more);
    events.push_back(std::move(event));
  };
  for (std::int64_t rank = 0; rank < run.num_ranks; ++rank) {
    add("M", "thread_name", 2 * rank, 0, {{"args", {{"name", "rank " + std::to_string(rank)}}}});
    for (const auto& [time, bytes] : memory_curve(run, costs, rank)) {
      add("C", "kept by rank " + std::to_string(rank), 2 * rank, time, {{"args", {{"bytes", bytes}}}});
    }
  }
  for (const auto& span : run.computations) {
    add("X", to_text(span.action), thread_of(span), span.start,
        {{"dur", (span.end - span.start) * microseconds_per_unit},
         {"cat", category_of(span.action)},
         {"args", {{"stage", stage_of(span.action).value}, {"microbatch", microbatch_of(span.action).value}}}});
    if (thread_of(span) % 2 == 1) {
      add("M", "thread_name", thread_of(span), 0,
          {{"args", {{"name", "rank " + std::to_string(span.rank) + ", composed"}}}});
    }
  }
  std::int64_t id = 0;
  for (const auto& message : run.messages) {
    const std::string name = to_text(send_of(message.transfer));
    const json flow = {{"id", ++id}, {"cat", "message"}};
    add("s", name, 2 * message.link.from, message.ready, flow);
    add("f", name, 2 * message.link.to, message.arrival, {{"id", id}, {"cat", "message"}, {"bp", "e"}});
  }
  return json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n";
}

}  // namespace d9d
