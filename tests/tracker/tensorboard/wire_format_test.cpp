#include "d9d/tracker/tensorboard/wire_format.h"

#include <array>

#include <gtest/gtest.h>

#include "d9d/tracker/tensorboard/crc32c.h"

namespace d9d::wire_format_test {
namespace {

using namespace std::string_literals;

TEST(Crc32c, Equals_the_examples_of_RFC_3720) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

TEST(ProtoMessage, Encodes_the_examples_of_the_protobuf_documentation) {
  EXPECT_EQ(ProtoMessage().add_int64(1, 150).bytes(), "\x08\x96\x01");
  EXPECT_EQ(ProtoMessage().add_int64(1, -2).bytes(), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_EQ(ProtoMessage().add_bytes(2, "testing").bytes(), "\x12\x07testing");
}

TEST(ProtoMessage, Writes_numbers_little_endian) {
  EXPECT_EQ(ProtoMessage().add_float(2, 1.0F).bytes(), "\x15\x00\x00\x80\x3f"s);
  EXPECT_EQ(ProtoMessage().add_double(1, 1.0).bytes(), "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f"s);
  EXPECT_EQ(ProtoMessage().add_packed_doubles(6, std::array{1.0}).bytes(), "\x32\x08\x00\x00\x00\x00\x00\x00\xf0\x3f"s);
}

TEST(TfRecord, Frames_the_payload_with_its_length_and_two_checksums) {
  const std::string record = tf_record("abc");
  EXPECT_EQ(record.size(), 8U + 4 + 3 + 4);
  EXPECT_EQ(record.substr(0, 8), "\x03\0\0\0\0\0\0\0"s);
  EXPECT_EQ(record.substr(12, 3), "abc");
}

}  // namespace
}  // namespace d9d::wire_format_test
