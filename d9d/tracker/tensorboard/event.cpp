#include "d9d/tracker/tensorboard/event.h"

#include <vector>

#include "d9d/tracker/tensorboard/wire_format.h"

namespace d9d {
namespace {

namespace event_field {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace session_field {
constexpr int kStatus = 1;
constexpr int kStatusStart = 1;  // a value of the enum SessionLog.SessionStatus
}  // namespace session_field
namespace summary_field {
constexpr int kValue = 1;
}
namespace value_field {
constexpr int kTag = 1, kSimpleValue = 2, kHistogram = 5, kTensor = 8, kMetadata = 9;
}
namespace histogram_field {
constexpr int kMin = 1, kMax = 2, kNum = 3, kSum = 4, kSumSquares = 5, kBucketLimit = 6, kBucket = 7;
}
namespace metadata_field {
constexpr int kPluginData = 1, kDataClass = 4;
constexpr int kPluginName = 1;       // of SummaryMetadata.PluginData
constexpr int kDataClassTensor = 2;  // a value of the enum DataClass
}  // namespace metadata_field
namespace tensor_field {
constexpr int kType = 1, kShape = 2, kStrings = 8;
constexpr int kTypeString = 7;  // a value of the enum DataType
}  // namespace tensor_field

ProtoMessage event(const EventStamp& stamp) {
  ProtoMessage message;
  message.add_double(event_field::kWallTime, stamp.wall_seconds).add_int64(event_field::kStep, stamp.step);
  return message;
}

std::string summary_event(const EventStamp& stamp, const ProtoMessage& value) {
  const std::string summary = ProtoMessage().add_bytes(summary_field::kValue, value.bytes()).bytes();
  return event(stamp).add_bytes(event_field::kSummary, summary).bytes();
}

}  // namespace

std::string file_version_event(const EventStamp& stamp) {
  return event(stamp).add_bytes(event_field::kFileVersion, "brain.Event:2").bytes();
}

std::string session_start_event(const EventStamp& stamp) {
  const std::string session = ProtoMessage().add_int64(session_field::kStatus, session_field::kStatusStart).bytes();
  return event(stamp).add_bytes(event_field::kSessionLog, session).bytes();
}

std::string scalar_event(const EventStamp& stamp, std::string_view tag, double value) {
  return summary_event(
      stamp,
      ProtoMessage().add_bytes(value_field::kTag, tag).add_float(value_field::kSimpleValue, static_cast<float>(value)));
}

std::string histogram_event(const EventStamp& stamp, std::string_view tag, std::span<const double> counts) {
  double num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto bin = static_cast<double>(i);
    num += counts[i];
    sum += counts[i] * bin;
    sum_squares += counts[i] * bin * bin;
    limits.push_back(bin + 1);
  }
  const std::string histogram = ProtoMessage()
                                    .add_double(histogram_field::kMin, 0)
                                    .add_double(histogram_field::kMax, static_cast<double>(counts.size()))
                                    .add_double(histogram_field::kNum, num)
                                    .add_double(histogram_field::kSum, sum)
                                    .add_double(histogram_field::kSumSquares, sum_squares)
                                    .add_packed_doubles(histogram_field::kBucketLimit, limits)
                                    .add_packed_doubles(histogram_field::kBucket, counts)
                                    .bytes();
  return summary_event(stamp,
                       ProtoMessage().add_bytes(value_field::kTag, tag).add_bytes(value_field::kHistogram, histogram));
}

std::string text_event(const EventStamp& stamp, std::string_view tag, std::string_view markdown) {
  const std::string plugin = ProtoMessage().add_bytes(metadata_field::kPluginName, "text").bytes();
  const std::string metadata = ProtoMessage()
                                   .add_bytes(metadata_field::kPluginData, plugin)
                                   .add_int64(metadata_field::kDataClass, metadata_field::kDataClassTensor)
                                   .bytes();
  const std::string tensor = ProtoMessage()
                                 .add_int64(tensor_field::kType, tensor_field::kTypeString)
                                 .add_bytes(tensor_field::kShape, "")  // a scalar
                                 .add_bytes(tensor_field::kStrings, markdown)
                                 .bytes();
  return summary_event(stamp, ProtoMessage()
                                  .add_bytes(value_field::kTag, tag)
                                  .add_bytes(value_field::kTensor, tensor)
                                  .add_bytes(value_field::kMetadata, metadata));
}

}  // namespace d9d
