// Shows the learning rate of each step of a job: in the terminal, as a picture, as a page.
//
//   d9d_lr_plot pretrain.json lr_scheduler.warmup_steps=500 --html lr.html
#include <charconv>
#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/config/load_config.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/lr_scheduler/build_lr_scheduler.h"
#include "d9d/lr_scheduler/plot_schedule.h"

namespace d9d::lr_plot {
namespace {

constexpr std::string_view kUsage = R"(usage: d9d_lr_plot JOB.json [key=value ...] [options]

  JOB.json         a job file, of which are read lr_scheduler, optimizer.lr (1 if there is none) and
                   trainer.schedule.total_steps; key=value change it, as they change a job
  --steps N        the number of steps, if the file has none
  --svg FILE       a picture
  --html FILE      a page with the picture, its values under the pointer and its corners; a browser opens it offline
Without --svg and --html the curve is drawn in the terminal.
)";

struct Arguments {
  ConfigCommand job;
  std::optional<std::int64_t> num_steps;
  std::optional<std::filesystem::path> svg, html;
};

std::int64_t parse_steps(const std::string& text) {
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  D9D_CHECK(error == std::errc{} && end == text.data() + text.size() && count >= 1, UsageError,
            "[lr_plot] expected a number from 1 on after --steps, got '", text, "'. See --help.");
  return count;
}

Arguments parse_arguments(int argc, const char* const* argv) {
  Arguments arguments;
  std::vector<const char*> of_job = {argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word != "--steps" && word != "--svg" && word != "--html") {
      of_job.push_back(argv[i]);
      continue;
    }
    D9D_CHECK(++i < argc, UsageError, "[lr_plot] expected a value after ", word, ". See --help.");
    if (word == "--steps") arguments.num_steps = parse_steps(argv[i]);
    if (word == "--svg") arguments.svg = argv[i];
    if (word == "--html") arguments.html = argv[i];
  }
  arguments.job = parse_config_command(static_cast<int>(of_job.size()), of_job.data());
  return arguments;
}

// The value at a path such as "trainer.schedule.total_steps", null if there is none.
Json value_at(const Json& job, const std::vector<std::string>& path) {
  Json value = job;
  for (const std::string& key : path) {
    if (!value.is_object() || !value.contains(key)) return nullptr;
    value = Json(value.at(key));
  }
  return value;
}

PlottedSchedule plot_of(const Arguments& arguments) {
  const Json job = read_config(arguments.job, nullptr);
  const Json curve = value_at(job, {"lr_scheduler"}), rate = value_at(job, {"optimizer", "lr"});
  D9D_CHECK(!curve.is_null(), ConfigError, "[lr_plot] expected lr_scheduler in ", arguments.job.file.string(),
            ", got none. Name the file of a training job.");
  D9D_CHECK(rate.is_null() || (rate.is_number() && rate.get<double>() >= 0), ConfigError,
            "[lr_plot] expected a number >= 0 as optimizer.lr, got ", rate.dump(), ". Correct it.");
  const Json total = value_at(job, {"trainer", "schedule", "total_steps"});
  D9D_CHECK(total.is_null() || (total.is_number_integer() && total.get<std::int64_t>() >= 1), ConfigError,
            "[lr_plot] expected a whole number from 1 on as trainer.schedule.total_steps, got ", total.dump(),
            ". Correct it.");
  D9D_CHECK(arguments.num_steps || !total.is_null(), ConfigError,
            "[lr_plot] expected the number of steps in trainer.schedule.total_steps or after --steps, got neither: a "
            "job that ends with its data does not say it. Use --steps.");
  const std::int64_t num_steps = arguments.num_steps ? *arguments.num_steps : total.get<std::int64_t>();
  const auto config =
      parse_record<LRSchedulerConfig>(curve, {.source = arguments.job.file.string() + ": lr_scheduler"});
  PlottedSchedule plot{.schedule = build_piecewise_schedule(config, num_steps),
                       .num_steps = num_steps,
                       .learning_rate = rate.is_null() ? 1 : rate.get<double>()};
  const Json name = value_at(curve, {"name"});
  plot.title =
      cat("learning rate, ", name.is_string() ? name.get<std::string>() : "piecewise", ", ", num_steps, " steps");
  for (const std::string& phase : phases_without_a_step(plot.schedule, num_steps)) {
    std::cerr << "[lr_plot] a phase has no step in this run: " << phase << '\n';
  }
  return plot;
}

void run(int argc, const char* const* argv) {
  const Arguments arguments = parse_arguments(argc, argv);
  if (arguments.job.wants_help) {
    std::cout << kUsage;
    return;
  }
  const PlottedSchedule plot = plot_of(arguments);
  const auto write = [](const std::filesystem::path& path, const std::string& text) {
    write_file_atomically(path, text);
    std::cout << "lr_plot: wrote " << path.string() << "\n";
  };
  if (arguments.svg) write(*arguments.svg, plot_svg(plot));
  if (arguments.html) write(*arguments.html, plot_html(plot));
  if (!arguments.svg && !arguments.html) std::cout << plot_text(plot);
}

}  // namespace
}  // namespace d9d::lr_plot

int main(int argc, char** argv) {
  try {
    d9d::lr_plot::run(argc, argv);
  } catch (const d9d::UsageError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  } catch (const d9d::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
