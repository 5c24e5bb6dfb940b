#include "d9d/base/config/byte_size.h"

#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/config/describe.h"
#include "d9d/base/config/record_json.h"

namespace d9d::byte_size_test {
namespace {

struct Sized {
  ByteSize size = {};
  static constexpr auto fields() { return record<Sized>(required("size", &Sized::size)); }
};

TEST(ByteSize, Is_read_with_and_without_a_unit) {
  EXPECT_EQ(parse_byte_size("80GiB"), 80LL << 30);
  EXPECT_EQ(parse_byte_size("2TiB"), 2LL << 40);
  EXPECT_EQ(parse_byte_size("3MB"), 3000000);
  EXPECT_EQ(parse_byte_size("12"), 12);
  EXPECT_EQ(parse_byte_size("0GiB"), 0);
  for (const char* const other : {"", "GiB", "-1GiB", "1.5GiB", "80 GiB", "80gib", "9999999999GiB", "1GiB2"}) {
    EXPECT_EQ(parse_byte_size(other), std::nullopt) << other;
  }
}

TEST(ByteSize, Is_written_in_the_largest_unit_below_it) {
  EXPECT_EQ(byte_size_text(0), "0 B");
  EXPECT_EQ(byte_size_text(1023), "1023 B");
  EXPECT_EQ(byte_size_text(1536), "1.50 KiB");
  EXPECT_EQ(byte_size_text(80LL << 30), "80.00 GiB");
  EXPECT_EQ(byte_size_text(5000LL << 40), "5000.00 TiB");
}

TEST(ByteSize, Of_a_configuration_is_written_as_it_can_be_read_exactly) {
  for (const char* const text :
       {R"({"size": "80GiB"})", R"({"size": "1537KiB"})", R"({"size": 12})", R"({"size": 0})", R"({"size": "7GB"})"}) {
    EXPECT_EQ(write_record(parse_record<Sized>(Json::parse(text))), Json::parse(text));
  }
  EXPECT_EQ(parse_record<Sized>(Json::parse(R"({"size": "1024MiB"})")).size.bytes, 1LL << 30);
  for (const char* const text : {R"({"size": -1})", R"({"size": "much"})", R"({"size": null})", R"({"size": 1.5})"}) {
    EXPECT_THROW((void)parse_record<Sized>(Json::parse(text)), ConfigError) << text;
  }
}

}  // namespace
}  // namespace d9d::byte_size_test
