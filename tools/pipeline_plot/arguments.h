// The command line of d9d_pipeline_plot.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "d9d/pipelining/program/pipeline_costs.h"
#include "d9d/pipelining/schedules/pipeline_schedule_config.h"

namespace d9d::plot {

inline constexpr std::string_view kUsage =
    R"(usage: d9d_pipeline_plot SCHEDULE [key=value ...] [options]
       d9d_pipeline_plot --program FILE [options]

  SCHEDULE              gpipe, inference, looped_bfs, 1f1b, zero_bubble_v, dual_pipe_v, or the JSON of a job's
                        trainer.pipelining.schedule; key=value are its keys: num_stages_per_rank=2 zero_bubble=true
  --program FILE        a program as text, a line a rank: "r0: 0F0 0SEND_F0 0RECV_B0 0B0"
  --ranks P             4 unless said otherwise
  --microbatches M      8 unless said otherwise
  --costs FILE          JSON: {"stages": [{"forward": 1.0, "backward": 2.1, "backward_input": 1.2,
                        "backward_weight": 0.9, "activation_bytes": 1e9, "deferred_bytes": 5e8}],
                        "link": {"latency": 0.01, "time": 0.1}, "composed_overlap": 0.3}; units without it
  --unit NAME           of the costs' times, for pictures: s, ms, us, or any word
  --slots N             messages of a link that may be sent and not received yet; 2 unless said otherwise

  --svg FILE            a picture: ranks over time, messages, what each rank keeps
  --trace FILE          for chrome://tracing and ui.perfetto.dev
  --text                the program of each rank
  --compute-only        the same without its messages
Without one of these four: makespan, bubble and what each rank keeps.
)";

struct Arguments {
  std::optional<PipelineScheduleConfig> schedule;
  std::optional<std::filesystem::path> program;
  std::int64_t num_ranks = 4;
  std::int64_t num_microbatches = 8;
  PipelineCosts costs;
  std::string unit;  // empty: not given
  std::int64_t num_slots = 2;
  std::optional<std::filesystem::path> svg;
  std::optional<std::filesystem::path> trace;
  bool wants_text = false;
  bool wants_compute_only = false;
  bool wants_help = false;
};

// Throws UsageError, ConfigError or IoError.
[[nodiscard]] Arguments parse_arguments(const std::vector<std::string>& words);

}  // namespace d9d::plot
