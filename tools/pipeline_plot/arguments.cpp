#include "tools/pipeline_plot/arguments.h"

#include <charconv>

#include "d9d/base/check.h"
#include "d9d/base/config/load_config.h"
#include "d9d/base/config/override.h"

namespace d9d::plot {
namespace {

std::int64_t parse_count(const std::string& option, const std::string& text) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  D9D_CHECK(error == std::errc{} && end == text.data() + text.size() && count >= 1, UsageError,
            "[pipeline_plot] expected a number from 1 on after ", option, ", got '", text, "'. See --help.");
  return count;
}

// A whole record, or its tag.
Json schedule_json(const std::string& text) {
  if (!text.starts_with('{')) return Json{{"schedule", text}};
  return parse_json_text(text, "the schedule");
}

}  // namespace

Arguments parse_arguments(const std::vector<std::string>& words) {
  Arguments arguments;
  Json schedule;
  std::size_t next = 0;
  const auto value_of = [&](const std::string& option) {
    D9D_CHECK(next < words.size(), UsageError, "[pipeline_plot] expected a value after ", option, ". See --help.");
    return words[next++];
  };
  while (next < words.size()) {
    const std::string word = words[next++];
    if (word == "--help" || word == "-h") {
      arguments.wants_help = true;
    } else if (word == "--program") {
      arguments.program = value_of(word);
    } else if (word == "--ranks") {
      arguments.num_ranks = parse_count(word, value_of(word));
    } else if (word == "--microbatches") {
      arguments.num_microbatches = parse_count(word, value_of(word));
    } else if (word == "--slots") {
      arguments.num_slots = parse_count(word, value_of(word));
    } else if (word == "--costs") {
      arguments.costs = load_record<PipelineCosts>(value_of(word));
    } else if (word == "--unit") {
      arguments.unit = value_of(word);
    } else if (word == "--svg") {
      arguments.svg = value_of(word);
    } else if (word == "--trace") {
      arguments.trace = value_of(word);
    } else if (word == "--text") {
      arguments.wants_text = true;
    } else if (word == "--compute-only") {
      arguments.wants_compute_only = true;
    } else if (word.starts_with('-')) {
      throw UsageError(cat("[pipeline_plot] unknown option '", word, "'. See --help."));
    } else if (schedule.is_null()) {
      schedule = schedule_json(word);
    } else {
      apply_override(schedule, word);
    }
  }
  if (!schedule.is_null())
    arguments.schedule = parse_record<PipelineScheduleConfig>(schedule, {.source = "the schedule"});
  D9D_CHECK(arguments.wants_help || arguments.schedule.has_value() != arguments.program.has_value(), UsageError,
            "[pipeline_plot] expected a schedule or --program. See --help.");
  return arguments;
}

}  // namespace d9d::plot
