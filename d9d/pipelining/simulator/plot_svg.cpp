#include "d9d/pipelining/simulator/plot_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "d9d/base/check.h"
#include "d9d/base/svg/svg_canvas.h"
#include "d9d/pipelining/simulator/memory.h"

namespace d9d {
namespace {

constexpr std::string_view kStyle = R"(.rank { font-weight: 600; }
.light { font-size: 11px; fill: #fff; }
.dark { font-size: 11px; fill: #111; }
.cell { stroke: #fff; stroke-width: 0.8; }
.composed { stroke: #111; stroke-width: 1.1; }
.memory { fill: #cfc3dd; stroke: #6b4c9a; stroke-width: 0.8; }
.message { fill: none; stroke-width: 0.9; stroke-opacity: 0.55; }
.message.activations { stroke: #004b76; } .message.gradients { stroke: #8c3d00; }
.head { fill-opacity: 0.8; } .head.activations { fill: #004b76; } .head.gradients { fill: #8c3d00; }
)";

constexpr double kLeft = 92;    // width for the names of ranks
constexpr double kRight = 118;  // width for the numbers of each rank
constexpr double kTop = 64;     // height for title and legend of a step
constexpr double kCells = 28;
constexpr double kMemory = 20;
constexpr double kGap = 14;  // between lanes: messages are drawn here
constexpr double kBottom = 40;
constexpr double kCellWidth = 17;  // width of the shortest computation, unless the picture gets too wide
constexpr double kLeastWidth = 880;
constexpr double kMostWidth = 5200;
constexpr double kLightest = 0.5;  // share of white in the color of a rank's last stage

struct Look {
  std::string_view name;
  std::array<double, 3> color;  // red, green, blue
};
const Look kForward{"F  forward", {0, 114, 178}};
const Look kBackward{"B  backward", {206, 78, 0}};
const Look kInput{"I  input gradients", {240, 192, 30}};
const Look kWeight{"W  weight gradients", {0, 140, 105}};

const Look& look_of(const ComputeAction& action) {
  if (holds<ForwardAction>(action)) return kForward;
  if (holds<BackwardAction>(action)) return kBackward;
  return holds<BackwardInputAction>(action) ? kInput : kWeight;
}

// Returns the color mixed with a share of white; with a share of 0, the color itself.
std::array<double, 3> lighter(const std::array<double, 3>& color, double share) {
  std::array<double, 3> result{};
  for (std::size_t i = 0; i < 3; ++i) result[i] = color[i] + share * (255 - color[i]);
  return result;
}

std::string color_text(const std::array<double, 3>& color) {
  return cat("rgb(", std::lround(color[0]), ",", std::lround(color[1]), ",", std::lround(color[2]), ")");
}

bool is_dark(const std::array<double, 3>& color) { return 0.3 * color[0] + 0.59 * color[1] + 0.11 * color[2] < 135; }

// The stages that each rank computes in a run.
class Chunks {
 public:
  explicit Chunks(const Simulation& run) {
    for (const auto& span : run.computations) stages_[span.rank].insert(stage_of(span.action));
  }
  [[nodiscard]] double shade(const ComputeSpan& span) const {
    const auto& stages = stages_.at(span.rank);
    const auto index = std::distance(stages.begin(), stages.find(stage_of(span.action)));
    return stages.size() < 2 ? 0 : kLightest * static_cast<double>(index) / static_cast<double>(stages.size() - 1);
  }
  [[nodiscard]] std::string names(std::int64_t rank) const {
    const auto found = stages_.find(rank);
    if (found == stages_.end()) return "";
    std::string text = found->second.size() > 1 ? "stages " : "stage ";
    for (const StageIndex stage : found->second) text += cat(stage == *found->second.begin() ? "" : ", ", stage.value);
    return text;
  }
  [[nodiscard]] bool has_several() const {
    return std::ranges::any_of(stages_, [](const auto& entry) { return entry.second.size() > 1; });
  }

 private:
  std::map<std::int64_t, std::set<StageIndex>> stages_;
};

std::string bytes_text(double bytes) {
  for (const auto& [unit, size] : {std::pair("GiB", 0x1p30), {"MiB", 0x1p20}, {"KiB", 0x1p10}}) {
    if (bytes >= size) return cat(std::round(10 * bytes / size) / 10, " ", unit);
  }
  return cat(std::round(100 * bytes) / 100);
}

std::string percent_text(double share) { return cat(std::round(1000 * std::max(share, 0.0)) / 10, " %"); }

class StepDrawing {
 public:
  StepDrawing(SvgCanvas& canvas, const PlottedStep& step, const PlotOptions& options, double scale, double top)
      : canvas_(canvas), step_(step), options_(options), chunks_(step.run), scale_(scale), top_(top + kTop) {}

  void draw() {
    draw_title();
    for (std::int64_t rank = 0; rank < step_.run.num_ranks; ++rank) draw_lane(rank);
    if (options_.messages) {  // drawn before the cells, whose numbers arrows must not hide
      for (const auto& message : step_.run.messages) draw_message(message);
    }
    for (const auto& span : step_.run.computations) draw_cell(span);
    draw_axis();
  }

  static double lane_height(const PlotOptions& options) { return kCells + (options.memory ? kMemory : 0) + kGap; }
  static double height(const Simulation& run, const PlotOptions& options) {
    return kTop + lane_height(options) * static_cast<double>(run.num_ranks) + kBottom;
  }

 private:
  [[nodiscard]] double x(double time) const { return kLeft + time * scale_; }
  [[nodiscard]] double y(std::int64_t rank) const { return top_ + static_cast<double>(rank) * lane_height(options_); }

  void draw_title() {
    canvas_.text(kLeft, top_ - 40, step_.title, "class=\"title\"");
    double at = kLeft;
    const auto entry = [&](const std::array<double, 3>& color, std::string_view name) {
      canvas_.rect(at, top_ - 26, 12, 12, cat("fill=\"", color_text(color), "\" rx=\"2\""));
      canvas_.text(at + 17, top_ - 16, name, "");
      at += 32 + 6.3 * static_cast<double>(name.size());
    };
    std::set<std::string_view> seen;
    for (const auto& span : step_.run.computations) seen.insert(look_of(span.action).name);
    for (const Look* look : {&kForward, &kBackward, &kInput, &kWeight}) {
      if (seen.contains(look->name)) entry(look->color, look->name);
    }
    entry({232, 232, 232}, "bubble");
    if (chunks_.has_several()) {
      for (const double part : {0.0, 0.5, 1.0}) {
        canvas_.rect(at + 24 * part, top_ - 26, 12, 12,
                     cat("fill=\"", color_text(lighter({90, 90, 90}, kLightest * part)), "\""));
      }
      canvas_.text(at + 42, top_ - 16, "first to last stage of the rank", "");
    }
  }

  void draw_lane(std::int64_t rank) {
    canvas_.rect(x(0), y(rank), step_.run.makespan * scale_, kCells, "fill=\"#e8e8e8\"");
    canvas_.text(kLeft - 10, y(rank) + 12, cat("rank ", rank), "class=\"rank\" text-anchor=\"end\"");
    canvas_.text(kLeft - 10, y(rank) + 25, chunks_.names(rank), "class=\"small\" text-anchor=\"end\"");
    const double right = x(step_.run.makespan) + 10;
    canvas_.text(right, y(rank) + 18, cat(percent_text(step_.run.bubble_fraction(rank)), " idle"), "");
    if (options_.memory) draw_memory(rank, right);
  }

  void draw_memory(std::int64_t rank, double right) {
    double most = 0;
    for (std::int64_t other = 0; other < step_.run.num_ranks; ++other) {
      most = std::max(most, peak_bytes(step_.run, step_.costs, other));
    }
    const double base = y(rank) + kCells + kMemory - 1;
    std::string path = cat("M", x(0), " ", base);
    for (const auto& [time, bytes] : memory_curve(step_.run, step_.costs, rank)) {
      path += cat("H", x(time), "V", base - (most > 0 ? bytes / most : 0) * (kMemory - 4));
    }
    canvas_.path(path + cat("H", x(step_.run.makespan), "V", base, "Z"), "class=\"memory\"");
    const double peak = peak_bytes(step_.run, step_.costs, rank);
    canvas_.text(right, base - 3, cat("keeps ", bytes_text(peak)), "class=\"small\"");
  }

  // Composed computations that overlap share the height of a lane, the forward on top.
  void draw_cell(const ComputeSpan& span) {
    const bool is_shared = span.is_composed && overlaps_another(span);
    const double height = is_shared ? kCells / 2 : kCells;
    const double top = y(span.rank) + (is_shared && !holds<ForwardAction>(span.action) ? kCells / 2 : 0);
    const auto color = lighter(look_of(span.action).color, chunks_.shade(span));
    const double width = (span.end - span.start) * scale_;
    const std::string edge = span.is_composed ? "class=\"composed\"" : "class=\"cell\"";
    canvas_.titled_rect(
        x(span.start), top, width, height, cat("fill=\"", color_text(color), "\" ", edge),
        cat(to_text(span.action), span.is_composed ? ", composed" : "", ": ", span.start, " to ", span.end));
    const std::string label = std::to_string(microbatch_of(span.action).value);
    if (width < 6.2 * static_cast<double>(label.size()) + 3 || height < 12) return;
    canvas_.text(x(span.start) + width / 2, top + height / 2 + 4, label,
                 cat("class=\"", is_dark(color) ? "light" : "dark", "\" text-anchor=\"middle\""));
  }

  [[nodiscard]] bool overlaps_another(const ComputeSpan& span) const {
    return std::ranges::any_of(step_.run.computations, [&](const ComputeSpan& other) {
      return other.rank == span.rank && other.is_composed && other.action != span.action && other.start < span.end &&
             span.start < other.end;
    });
  }

  // Draws an arrow from the sender's lane to the receiver's. The arrow begins when the transfer has been computed.
  void draw_message(const MessageSpan& message) {
    const bool is_down = message.link.from < message.link.to;
    const double from = y(message.link.from) + (is_down ? kCells : 0);
    const double to = y(message.link.to) + (is_down ? 0 : kCells);
    const double direction = is_down ? 1 : -1;
    const double start = x(message.ready);
    const double end = x(message.arrival);
    const std::string_view kind = message.transfer.is_forward() ? "activations" : "gradients";
    canvas_.path(cat("M", start, " ", from, "C", start, " ", from + direction * 12, " ", end, " ", to - direction * 14,
                     " ", end, " ", to - direction * 4),
                 cat("class=\"message ", kind, "\""));
    canvas_.path(
        cat("M", end - 2.4, " ", to - direction * 5, "L", end, " ", to, "L", end + 2.4, " ", to - direction * 5, "Z"),
        cat("class=\"head ", kind, "\""));
  }

  void draw_axis() {
    const double bottom = y(step_.run.num_ranks);
    const double step = tick_step(step_.run.makespan, 10);
    canvas_.path(cat("M", x(0), " ", bottom, "H", x(step_.run.makespan)), "class=\"axis\"");
    for (int i = 0; i * step <= step_.run.makespan * (1 + 1e-9); ++i) {
      canvas_.path(cat("M", x(i * step), " ", bottom, "v5"), "class=\"axis\"");
      canvas_.text(x(i * step), bottom + 18, cat(i * step), "text-anchor=\"middle\"");
    }
    canvas_.text(x(step_.run.makespan) + 22, bottom + 18, options_.time_unit, "class=\"small\"");
  }

  SvgCanvas& canvas_;
  const PlottedStep& step_;
  const PlotOptions& options_;
  Chunks chunks_;
  double scale_;  // pixels per unit of time
  double top_;    // top of the first lane
};

}  // namespace

std::string plot_svg(const std::vector<PlottedStep>& steps, const PlotOptions& options) {
  double makespan = 0;
  double shortest = 0;
  double height = 8;
  for (const auto& step : steps) {
    makespan = std::max(makespan, step.run.makespan);
    height += StepDrawing::height(step.run, options);
    for (const auto& span : step.run.computations) {
      const double duration = span.end - span.start;
      if (duration > 0 && (shortest == 0 || duration < shortest)) shortest = duration;
    }
  }
  D9D_CHECK(makespan > 0, ConfigError, "[pipelining::plot] expected a step that takes time, got none. Add one.");
  const double width = std::clamp(kCellWidth * makespan / shortest, kLeastWidth, kMostWidth);
  SvgCanvas canvas(kLeft + width + kRight, height, kStyle);
  double top = 8;
  for (const auto& step : steps) {
    StepDrawing(canvas, step, options, width / makespan, top).draw();
    top += StepDrawing::height(step.run, options);
  }
  return canvas.take();
}

}  // namespace d9d
