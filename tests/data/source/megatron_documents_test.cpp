#include "d9d/data/source/megatron_documents.h"

#include <gmock/gmock.h>

#include "d9d/base/check.h"

#include "tests/data/source/source_test.h"

namespace d9d::megatron_documents_test {
namespace {

using test::Ids;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Written by IndexedDatasetBuilder of megatron-core 0.16.1; documents 0, 3 and 6 have two sequences.
const std::filesystem::path kWritten = D9D_SOURCE_DIR "/tests/data/source/megatron";
const std::vector<Ids> kOfUint16 = {{25875, 42659, 3164, 4747, 35119},
                                    {23965},
                                    {3801, 33255, 14070, 2457, 5632},
                                    {4578, 15772, 5944, 36113, 27821, 3873, 37057, 8113},
                                    {41328, 41119},
                                    {4054, 37821, 38374, 25996, 3249},
                                    {36481, 8727, 18979}};
const std::vector<Ids> kOfInt32 = {{141737, 30878, 149661, 80866, 146868, 47376},
                                   {149737},
                                   {49249, 97621, 25540, 143587, 16459, 147945},
                                   {53990, 130132, 139387, 112090, 82351, 122054},
                                   {118799, 94786, 78582, 65123, 47124},
                                   {63988, 21457, 150581, 78708, 137677, 129791},
                                   {117659, 75481, 19189, 30950, 134200, 109608, 43243, 89667, 39841}};

TEST(MegatronDocuments, Equal_what_Megatron_wrote) {
  EXPECT_EQ(test::all_documents(MegatronDocuments(kWritten / "uint16", 50257)), kOfUint16);
  EXPECT_EQ(test::all_documents(MegatronDocuments(kWritten / "int32.idx", 151936)), kOfInt32);
  EXPECT_EQ(test::all_documents(MegatronDocuments(kWritten / "int32.bin", 151936)), kOfInt32);
}

TEST(MegatronDocuments, Read_any_part_across_sequences) {
  const MegatronDocuments documents(kWritten / "uint16", 50257);
  const Ids& whole = kOfUint16[3];
  for (std::int64_t start = 0; start <= std::ssize(whole); ++start) {
    for (std::int64_t count = 0; start + count <= std::ssize(whole); ++count) {
      Ids part(static_cast<std::size_t>(count));
      documents.read(3, start, part);
      EXPECT_EQ(part, Ids(whole.begin() + start, whole.begin() + start + count)) << start << "+" << count;
    }
  }
}

TEST(MegatronDocuments, Name_document_and_token_of_an_id_outside_the_vocabulary) {
  const MegatronDocuments documents(kWritten / "int32", 149700);
  EXPECT_NO_THROW((void)test::document_of(documents, 0));
  EXPECT_THAT(
      test::message_of<IoError>([&] { (void)test::document_of(documents, 1); }),
      AllOf(HasSubstr("149737"), HasSubstr("token 0 of document 1"), HasSubstr("int32.bin"), HasSubstr("= 149700")));
}

// Damaged copies of the files.
class DamagedMegatronFiles : public test::SourceTest {
 protected:
  void SetUp() override {
    for (const std::string end : {"bin", "idx"}) {
      std::filesystem::copy_file(kWritten / ("uint16." + end), folder / ("d." + end));
    }
  }
  template <class Stored>
  void put(std::streamoff byte, Stored value) const {
    std::fstream file(folder / "d.idx", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(byte).write(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void resize(const std::string& name, std::int64_t change) const {
    std::filesystem::resize_file(folder / name, std::filesystem::file_size(folder / name) + change);
  }
  std::string error() const {
    return test::message_of<IoError>([this] { MegatronDocuments(folder / "d", 50257); });
  }
  // 34 bytes of header, 10 lengths of 4 bytes, 10 pointers of 8, 8 bounds of 8.
  static constexpr std::streamoff kLengths = 34, kPointers = 74, kBounds = 154;
};

TEST_F(DamagedMegatronFiles, Are_refused_without_the_magic_or_cut_within_the_header) {
  put(0, 'X');
  EXPECT_THAT(error(), AllOf(HasSubstr("MMIDIDX"), HasSubstr("d.idx")));
  put(0, 'M');
  EXPECT_NO_THROW(MegatronDocuments(folder / "d", 50257));
  std::filesystem::resize_file(folder / "d.idx", 33);
  EXPECT_THAT(error(), HasSubstr("got 33 bytes"));
}

TEST_F(DamagedMegatronFiles, Are_refused_with_another_version_or_floating_numbers) {
  put(9, std::uint64_t{2});
  EXPECT_THAT(error(), HasSubstr("version 1"));
  put(9, std::uint64_t{1});
  put(17, std::uint8_t{7});
  EXPECT_THAT(error(), AllOf(HasSubstr("integer dtype"), HasSubstr("got 7")));
}

TEST_F(DamagedMegatronFiles, Are_refused_when_the_index_is_shorter_or_longer_than_its_counts) {
  resize("d.idx", -1);
  EXPECT_THAT(error(), HasSubstr("to have 218 bytes for 10 sequences and 8 document bounds, got 217"));
  resize("d.idx", 2);
  EXPECT_THAT(error(), HasSubstr("got 219"));
  resize("d.idx", 9);
  EXPECT_THAT(error(), HasSubstr("multimodal"));
  put(18, ~std::uint64_t{0});  // sums of counts must not overflow
  EXPECT_THAT(error(), HasSubstr("18446744073709551615 sequences"));
}

TEST_F(DamagedMegatronFiles, Are_refused_when_a_sequence_lies_outside_the_tokens) {
  resize("d.bin", -1);
  EXPECT_THAT(error(), AllOf(HasSubstr("sequence 9"), HasSubstr("57 bytes"), HasSubstr("d.bin")));
  resize("d.bin", 1);
  put(kLengths + 4 * 2, std::int32_t{-1});
  EXPECT_THAT(error(), AllOf(HasSubstr("sequence 2"), HasSubstr("got -1 tokens")));
  put(kLengths + 4 * 2, std::int32_t{1});
  put(kPointers + 8 * 2, std::int64_t{58});
  EXPECT_THAT(error(), HasSubstr("1 tokens at byte 58"));
}

TEST_F(DamagedMegatronFiles, Are_refused_when_documents_do_not_cover_the_sequences_in_order) {
  put(kBounds + 8 * 7, std::int64_t{9});
  EXPECT_THAT(error(), HasSubstr("to cover sequences 0 to 10, got 0 to 9"));
  put(kBounds + 8 * 7, std::int64_t{10});
  put(kBounds + 8 * 2, std::int64_t{11});
  EXPECT_THAT(error(), HasSubstr("got 11 before 4 at document 2"));
}

TEST_F(DamagedMegatronFiles, Are_refused_without_the_tokens) {
  std::filesystem::remove(folder / "d.bin");
  EXPECT_THAT(error(), HasSubstr("d.bin"));
}

}  // namespace
}  // namespace d9d::megatron_documents_test
