// What streams say of themselves: AnyPackStream::describe().
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"
#include "d9d/data/build/token_stream.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/data/pack/prefetched_packs.h"

#include "tests/support/io_faults.h"

namespace d9d::stream_description_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The whole text of docs/data.md: the page shows what the test expects.
std::string page() {
  std::ifstream file(std::filesystem::path(D9D_SOURCE_DIR) / "docs/data.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

class StreamDescription : public ::testing::Test {
 protected:
  // Documents of 41, 31, 21, 1 and 91 bytes in two files, and two documents of 61 ids in another.
  void SetUp() override {
    write_rows("web-0.jsonl", {41, 31, 21, 1});
    write_rows("web-1.jsonl", {91});
    std::ofstream code(folder / "code.bin", std::ios::binary);
    for (int document = 0; document < 2; ++document) code << std::string(60, '\1') << '\2';
  }

  void write_rows(const std::string& name, const std::vector<std::size_t>& lengths) const {
    std::ofstream file(folder / name);
    for (const std::size_t length : lengths) file << R"({"text": ")" << std::string(length, 'x') << "\"}\n";
  }

  // The section "data" of a configuration whose paths are in the folder.
  std::unique_ptr<PackStream<TokenBatch>> build(const std::string& data, bool repeat = false) const {
    std::string text = data;
    for (std::size_t at = 0; (at = text.find("{folder}", at)) != std::string::npos;) {
      text.replace(at, std::string("{folder}").size(), folder.string());
    }
    return build_token_stream(
        parse_record<DataConfig>(Json::parse(text), {.keys = "data"}),
        {.vocabulary_size = 300, .stream = {.repeat = repeat, .log = silent, .shared_log = silent}});
  }

  // The lines of the tree, with paths relative to the folder.
  std::vector<std::string> lines_of(const AnyPackStream& stream) const {
    std::vector<std::string> lines = tree_lines(stream.describe());
    for (std::string& line : lines) {
      const std::string prefix = folder.string() + "/";
      if (const auto at = line.find(prefix); at != std::string::npos) line.erase(at, prefix.size());
    }
    return lines;
  }

  const std::filesystem::path folder = std::filesystem::canonical(test::fresh_directory("stream_description"));
  const Logger silent = Logger().with_sink([](std::string_view) {});
};

TEST_F(StreamDescription, Is_a_tree_from_the_packs_of_a_step_to_the_files) {
  const auto stream = build(R"({"kind": "mixture", "sources": [
      {"weight": 0.6, "source": {"kind": "jsonl", "paths": ["{folder}/web-*.jsonl"], "cache": "{folder}/cache",
                                 "sequence_length": 60, "view": {"kind": "packed", "long_documents": "split"}}},
      {"weight": 0.4, "source": {"kind": "tokens", "path": "{folder}/code.bin", "dtype": "uint8", "end_of_document": 2,
                                 "sequence_length": 60, "view": {"kind": "packed"}}}],
      "shuffle": true, "global_batch_size": 4, "microbatch_size": 2, "num_workers": 2})",
                            /*repeat=*/true);
  const std::vector<std::string> lines = lines_of(*stream);
  // Items of 40, 30, 20, 60 and 30 positions fill 60, 40 + 20 and 30 + 30 of three sequences.
  EXPECT_THAT(
      lines, ElementsAre("packs of 2 microbatches, one pack in each step of a rank",
                         "  loader: 2 workers, each 2 microbatches ahead",
                         "    order: 5 samples as they come, in global batches of 4 and microbatches of 2, without end",
                         "      mixture of 2 sources: 5 samples in an epoch",
                         "        weight 0.6: 3 packed sequences of 60 positions, from buffers of 1024 documents, "
                         "shuffled in each epoch",
                         "          5 pieces of at most 60 positions, 1 too short: skip, 1 too long: split",
                         "            5 documents of 185 tokens in all",
                         "              JSON lines of 'web-0.jsonl' and 1 more file",
                         "        weight 0.4: 2 packed sequences of 60 positions, from buffers of 1024 documents, "
                         "shuffled in each epoch",
                         "          2 documents of at most 60 positions", "            2 documents of 'code.bin'"));
  std::string block;
  for (const std::string& line : lines) block += "data: " + line + "\n";
  EXPECT_THAT(page(), HasSubstr("```\n" + block + "```\n"));
}

TEST_F(StreamDescription, Has_the_parts_of_each_view) {
  const std::string begin =
      R"({"kind": "tokens", "path": "{folder}/code.bin", "dtype": "uint8", "end_of_document": 2,)";
  const std::string loader = R"("shuffle": true, "global_batch_size": 2, "microbatch_size": 1, "num_workers": 0})";
  const auto concatenated = build(begin + R"("sequence_length": 50, "view": {"kind": "concatenated"},)" + loader);
  EXPECT_THAT(lines_of(*concatenated),
              ElementsAre("packs of 2 microbatches, one pack in each step of a rank",
                          "  loader: reads each microbatch when it is needed",
                          "    order: 2 samples, shuffled in each epoch, in global batches of 2 and microbatches of 1, "
                          "one epoch",
                          "      2 sequences of 50 positions", "        122 tokens, documents one after the other",
                          "          2 documents of 'code.bin'"));
  const auto sorted =
      build(begin + R"("sequence_length": 60, "view": {"kind": "documents", "sort_buffer_size": 4},)" + loader);
  const std::vector<std::string> lines = lines_of(*sorted);
  EXPECT_THAT(std::vector(lines.begin() + 3, lines.end()),
              ElementsAre("      sorted by length in buffers of 4, in batches of 2, shuffled in each epoch",
                          "        2 sequences, each one document", "          2 documents of at most 60 positions",
                          "            2 documents of 'code.bin'"));
  const auto text = build(R"({"kind": "text", "paths": ["{folder}/web-1.jsonl", "{folder}/code.bin"],
                              "sequence_length": 40,)" +
                          loader);
  EXPECT_THAT(lines_of(*text), ::testing::Contains("        227 tokens, documents one after the other, with token 0 "
                                                   "between them"));
  const auto streamed = build(R"({"kind": "jsonl", "paths": ["{folder}/web-0.jsonl"], "sequence_length": 60,
      "view": {"kind": "streamed", "buffer_size": 8, "tokens_per_step": 90},)" +
                              loader);
  EXPECT_THAT(lines_of(*streamed),
              ElementsAre("packs of 2 sequences, and as many again until they have 90 positions, in microbatches of 1, "
                          "one epoch",
                          "  packed sequences of 60 positions, from buffers of 8 documents, shuffled in each epoch, "
                          "too long: refuse",
                          "    1 part, tokenised while the job runs", "      JSON lines of 'web-0.jsonl'"));
}

// A stream with the four functions of MicrobatchPackStream.
struct OnePack {
  std::optional<std::vector<TokenBatch>> next() { return std::nullopt; }
  std::optional<std::int64_t> total_steps() const { return 1; }
  nlohmann::json state() const { return {}; }
  void load_state(const nlohmann::json&) {}
};

struct DescribedPack : OnePack {
  DataDescription describe() const { return {.line = "one pack"}; }
};

TEST(OwnStream, Says_its_lines_or_has_one) {
  EXPECT_THAT(tree_lines(as_pack_stream<TokenBatch>(DescribedPack())->describe()), ElementsAre("one pack"));
  const PrefetchedPacks<TokenBatch> packs(as_pack_stream<TokenBatch>(OnePack()), {.prefetch_factor = 1});
  EXPECT_THAT(tree_lines(packs.describe()),
              ElementsAre("1 pack ahead, copied to cpu", "  packs of a stream of the program's own"));
}

}  // namespace
}  // namespace d9d::stream_description_test
