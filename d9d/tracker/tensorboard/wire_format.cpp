#include "d9d/tracker/tensorboard/wire_format.h"

#include <bit>

#include "d9d/tracker/tensorboard/crc32c.h"

namespace d9d {
namespace {

enum class WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

template <class Unsigned>
void append_little_endian(std::string& bytes, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(Unsigned); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

void append_varint(std::string& bytes, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  bytes += static_cast<char>(value);
}

void append_key(std::string& bytes, int field, WireType type) {
  append_varint(bytes, static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(type));
}

// Checksums of data that contains checksums would be weak, so TFRecord rotates them and adds a constant.
std::uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8U; }

}  // namespace

ProtoMessage& ProtoMessage::add_int64(int field, std::int64_t value) {
  append_key(bytes_, field, WireType::kVarint);
  append_varint(bytes_, static_cast<std::uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_double(int field, double value) {
  append_key(bytes_, field, WireType::kFixed64);
  append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_float(int field, float value) {
  append_key(bytes_, field, WireType::kFixed32);
  append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
  return *this;
}

ProtoMessage& ProtoMessage::add_bytes(int field, std::string_view value) {
  append_key(bytes_, field, WireType::kLengthDelimited);
  append_varint(bytes_, value.size());
  bytes_ += value;
  return *this;
}

ProtoMessage& ProtoMessage::add_packed_doubles(int field, std::span<const double> values) {
  std::string packed;
  for (const double value : values) append_little_endian(packed, std::bit_cast<std::uint64_t>(value));
  return add_bytes(field, packed);
}

std::string tf_record(std::string_view payload) {
  std::string record;
  append_little_endian(record, static_cast<std::uint64_t>(payload.size()));
  append_little_endian(record, masked_crc32c(record));
  record += payload;
  append_little_endian(record, masked_crc32c(payload));
  return record;
}

}  // namespace d9d
