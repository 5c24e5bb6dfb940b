// Events of TensorBoard, encoded as protocol buffers (tensorboard/compat/proto: event, summary, tensor).
//
// Example
//   const d9d::EventStamp stamp{.wall_seconds = 1.7e9, .step = 3};
//   file.write(d9d::tf_record(d9d::scalar_event(stamp, "train/loss", 2.5)));
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace d9d {

struct EventStamp {
  double wall_seconds = 0;  // since 1970
  std::int64_t step = 0;
};

// The first event of every file.
[[nodiscard]] std::string file_version_event(const EventStamp& stamp);

// Marks that a process starts at `stamp.step`: readers ignore values of this step and later ones in earlier files of
// the folder.
[[nodiscard]] std::string session_start_event(const EventStamp& stamp);

// A `simple_value` in single precision, which every reader of event files understands.
[[nodiscard]] std::string scalar_event(const EventStamp& stamp, std::string_view tag, double value);

// Bucket i holds counts[i] values from [i, i + 1).
[[nodiscard]] std::string histogram_event(const EventStamp& stamp, std::string_view tag,
                                          std::span<const double> counts);

// Markdown for TensorBoard's page "Text".
[[nodiscard]] std::string text_event(const EventStamp& stamp, std::string_view tag, std::string_view markdown);

}  // namespace d9d
