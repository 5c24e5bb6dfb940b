// The parts of the wire format of protocol buffers and of the framing of TFRecord files that event files need
// (protobuf.dev/programming-guides/encoding, tensorflow.org/tutorials/load_data/tfrecord).
//
// Example
//   d9d::ProtoMessage point;
//   point.add_int64(1, 150).add_bytes(2, "testing");
//   const std::string record = d9d::tf_record(point.bytes());
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace d9d {

// Fields are encoded in the order of the calls. A nested message is a bytes field.
class ProtoMessage {
 public:
  ProtoMessage& add_int64(int field, std::int64_t value);  // also enums
  ProtoMessage& add_double(int field, double value);
  ProtoMessage& add_float(int field, float value);
  ProtoMessage& add_bytes(int field, std::string_view value);
  ProtoMessage& add_packed_doubles(int field, std::span<const double> values);

  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Frames the payload: length, masked checksum of the length, payload, masked checksum of the payload.
[[nodiscard]] std::string tf_record(std::string_view payload);

}  // namespace d9d
