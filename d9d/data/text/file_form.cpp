#include "d9d/data/text/file_form.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "d9d/base/io/input_file.h"

namespace d9d {

namespace {

using namespace std::string_view_literals;

struct Mark {
  std::string_view bytes;
  FileForm form;
};

constexpr FileForm kGzip = {"compressed by gzip", "Unpack it: gunzip"};
constexpr FileForm kTar = {"a tar archive", "Unpack it: tar -xf"};
constexpr std::array kFormats = std::to_array<Mark>({
    {"\x28\xb5\x2f\xfd"sv, {"compressed by zstd", "Unpack it: unzstd"}},
    {"\xfd"
     "7zXZ\0"sv,
     {"compressed by xz", "Unpack it: unxz"}},
    {"\x04\x22\x4d\x18"sv, {"compressed by lz4", "Unpack it: unlz4"}},
    {"PK\x03\x04"sv, {"a zip archive", "Unpack it: unzip"}},
    {"PAR1"sv, {"a Parquet file", "Read it as data of kind \"parquet\""}},
    {"ARROW1\0\0"sv, {"an Arrow file", "Read it as data of kind \"arrow\""}},
    {"\x93NUMPY"sv,
     {"an array of NumPy, which begins with a header", "Write its ids alone: numpy.load(file).tofile(...)"}},
});
constexpr std::array kEncodings = std::to_array<Mark>({
    {"\xff\xfe\0\0"sv, {"text in UTF-32", "Write it as UTF-8: iconv -f UTF-32 -t UTF-8"}},
    {"\0\0\xfe\xff"sv, {"text in UTF-32", "Write it as UTF-8: iconv -f UTF-32 -t UTF-8"}},
    {"\xff\xfe"sv, {"text in UTF-16", "Write it as UTF-8: iconv -f UTF-16 -t UTF-8"}},
    {"\xfe\xff"sv, {"text in UTF-16", "Write it as UTF-8: iconv -f UTF-16 -t UTF-8"}},
});

std::optional<FileForm> form_of(std::span<const Mark> marks, std::string_view bytes) {
  const auto mark = std::ranges::find_if(marks, [&](const Mark& one) { return bytes.starts_with(one.bytes); });
  if (mark == marks.end()) return std::nullopt;
  return mark->form;
}

// A file of tokens may begin with the two magic bytes of gzip, but hardly with its header of ten bytes: the method
// deflate, no reserved flag, a known level and a known system.
bool is_gzip(std::string_view bytes) {
  if (bytes.size() < 10 || !bytes.starts_with("\x1f\x8b\x08"sv)) return false;
  const auto at = [bytes](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  return at(3) < 0x20 && (at(8) == 0 || at(8) == 2 || at(8) == 4) && (at(9) < 14 || at(9) == 255);
}

bool is_bzip2(std::string_view bytes) { return bytes.starts_with("BZh") && bytes.substr(4).starts_with("1AY&SY"); }

bool is_tar(std::string_view bytes) {
  constexpr std::size_t kTarMagic = 257;
  return bytes.size() > kTarMagic && bytes.substr(kTarMagic).starts_with("ustar");
}

// Returns 0 if a zero byte follows each byte that is not zero, as in ASCII text in UTF-16LE; 1 if one precedes each, as
// in UTF-16BE; nullopt otherwise.
std::optional<int> utf16_without_mark(std::string_view bytes) {
  constexpr std::size_t kLooksAt = 16;
  const std::string_view some = bytes.substr(0, std::min(kLooksAt, bytes.size() / 2 * 2));
  if (some.size() < 4) return std::nullopt;
  std::array<int, 2> zeros = {};
  for (std::size_t i = 0; i < some.size(); ++i) zeros[i % 2] += some[i] == '\0' ? 1 : 0;
  const int half = static_cast<int>(some.size() / 2);
  if (zeros == std::array{0, half}) return 0;
  return zeros == std::array{half, 0} ? std::optional(1) : std::nullopt;
}

}  // namespace

std::string first_bytes(const std::filesystem::path& path) {
  constexpr std::int64_t kMost = 512;
  const InputFile file(path);
  std::string bytes(static_cast<std::size_t>(std::min(kMost, file.size())), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

std::optional<FileForm> foreign_format(std::string_view bytes) {
  if (is_gzip(bytes)) return kGzip;
  if (is_bzip2(bytes)) return FileForm{"compressed by bzip2", "Unpack it: bunzip2"};
  if (is_tar(bytes)) return kTar;
  return form_of(kFormats, bytes);
}

std::optional<FileForm> foreign_encoding(std::string_view bytes) {
  if (const auto form = form_of(kEncodings, bytes)) return form;
  const auto order = utf16_without_mark(bytes);
  if (!order) return std::nullopt;
  return FileForm{"text in UTF-16", *order == 0 ? "Write it as UTF-8: iconv -f UTF-16LE -t UTF-8"
                                                : "Write it as UTF-8: iconv -f UTF-16BE -t UTF-8"};
}

}  // namespace d9d
