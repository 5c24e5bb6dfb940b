// Each key of a job that reads text changes what it reads.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/data/build/token_stream.h"
#include "d9d/data/stream/streamed_packs.h"
#include "d9d/data/text/jsonl_rows.h"

#include "tests/data/sequences/sample_values.h"
#include "tests/data/source/source_test.h"
#include "tests/support/byte_tokenizer.h"

namespace d9d::token_stream_text_test {
namespace {

using test::Ids;
using test::values;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr DataParallelRank kRank{.index = 1, .size = 2};

class TextOfAJob : public test::SourceTest {
 protected:
  static std::unique_ptr<PackStream<TokenBatch>> build(const nlohmann::json& json, StreamOptions options = {}) {
    return build_token_stream(parse_record<DataConfig>(json, {.keys = "data"}),
                              {.vocabulary_size = 257, .stream = std::move(options)});
  }
  static std::string error_of(const nlohmann::json& json) {
    return test::message_of<ConfigError>([&] { (void)build(json); });
  }

  // The log while the stream is built and `num_packs` packs are read.
  static std::string log_of(const nlohmann::json& json, int num_packs = 0) {
    std::string log;
    const Logger logger = Logger().with_sink([&](std::string_view line) { log += line; });
    const auto stream = build(json, {.log = logger, .shared_log = logger});
    for (int i = 0; i < num_packs; ++i) (void)stream->next();
    return log;
  }

  // One document per pack.
  nlohmann::json documents(const std::string& kind, const std::vector<std::string>& paths) const {
    return {{"kind", kind},         {"paths", paths},         {"cache", (folder / "cache").string()},
            {"sequence_length", 9}, {"global_batch_size", 1}, {"view", {{"kind", "documents"}}},
            {"num_workers", 0},     {"microbatch_size", 1}};
  }
  // All tokens of a pass, the last label of a document included.
  static std::vector<Ids> read(const nlohmann::json& json) {
    std::vector<Ids> all;
    const auto stream = build(json);
    while (auto pack = stream->next()) {
      all.push_back(values(pack->front().input_ids));
      all.back().push_back(values(pack->front().labels).back());
    }
    return all;
  }
};

TEST_F(TextOfAJob, Is_tokenised_as_the_keys_say) {
  const auto path = write("a.jsonl", "{\"text\": \"ab\", \"other\": \"cd\"}\n");
  nlohmann::json json = documents("jsonl", {path});
  EXPECT_THAT(read(json), ElementsAre(Ids{'a', 'b'}));
  json["column"] = "other";
  EXPECT_THAT(read(json), ElementsAre(Ids{'c', 'd'}));
  json["end_of_document"] = "!";
  EXPECT_THAT(read(json), ElementsAre(Ids{'c', 'd', '!'}));
  json["tokenizer"] = write("tokenizer.json", test::byte_tokenizer());
  json["end_of_document"] = "<s>";
  EXPECT_THAT(read(json), ElementsAre(Ids{'c', 'd', 256}));
  json["add_special_tokens"] = true;
  EXPECT_THAT(read(json), ElementsAre(Ids{256, 'c', 'd', 256}));
  json["prompt_column"] = "text";
  json["add_special_tokens"] = false;
  EXPECT_THAT(read(json), ElementsAre(Ids{'a', 'b', 'c', 'd', 256}));
}

TEST_F(TextOfAJob, Of_bytes_is_without_empty_files) {
  nlohmann::json json = documents("text", {write("a.txt", "ab"), write("b.txt", ""), write("c.txt", "cd")});
  EXPECT_THAT(read(json), ElementsAre(Ids{'a', 'b'}, Ids{'c', 'd'}));
  EXPECT_THAT(log_of(json), AllOf(HasSubstr("1 of 3 files are empty"), HasSubstr("b.txt")));
  json["paths"] = {(folder / "b.txt").string()};
  EXPECT_THAT(test::message_of<IoError>([&] { (void)read(json); }), HasSubstr("b.txt"));
}

TEST_F(TextOfAJob, Of_bytes_is_no_compressed_file) {
  const auto path = write("a.txt", std::string_view("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10));
  EXPECT_THAT(test::message_of<IoError>([&] { (void)read(documents("text", {path})); }), HasSubstr("gzip"));
}

// Without such a token a model does not learn to stop.
TEST_F(TextOfAJob, Without_a_token_that_ends_a_document_is_told) {
  constexpr const char* kWarning = "no token ends a document";
  const auto path =
      write("a.jsonl", "{\"text\": \"ab\", \"ended\": \"ab</s>\"}\n{\"text\": \"cd\", \"ended\": \"cd</s>\"}\n");
  nlohmann::json json = documents("jsonl", {path});
  std::string tokenizer = test::byte_tokenizer();
  for (std::size_t at = 0; (at = tokenizer.find("<s>", at)) != std::string::npos;) tokenizer.replace(at, 3, "</s>");
  json["tokenizer"] = write("tokenizer.json", tokenizer);
  for (const char* view : {"documents", "packed", "streamed", "concatenated"}) {
    nlohmann::json own = json;
    own.update({{"view", {{"kind", view}}}, {"sequence_length", view == std::string("concatenated") ? 1 : 9}});
    EXPECT_THAT(log_of(own), AllOf(HasSubstr(kWarning), HasSubstr("such as \"</s>\""))) << view;
    own["end_of_document"] = "</s>";
    EXPECT_THAT(log_of(own), Not(HasSubstr(kWarning))) << view;
  }
  json["column"] = "ended";
  for (const char* view : {"documents", "packed", "streamed"}) {
    nlohmann::json own = json;
    own["view"] = {{"kind", view}};
    EXPECT_THAT(log_of(own), Not(HasSubstr(kWarning))) << view;
  }
  EXPECT_THAT(log_of(documents("text", {write("a.txt", "ab")})), HasSubstr(kWarning));
  nlohmann::json bytes = documents("text", {write("a.txt", "ab")});  // with a separator
  bytes.update({{"view", {{"kind", "concatenated"}}}, {"sequence_length", 1}});
  EXPECT_THAT(log_of(bytes), Not(HasSubstr(kWarning)));
}

// Documents alternate between 2 and 8 positions.
TEST_F(TextOfAJob, Is_sorted_in_buffers_of_the_size_that_the_key_says) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += "{\"text\": \"" + std::string(i % 2 == 0 ? 3 : 9, 'a') + "\"}\n";
  nlohmann::json json = documents("jsonl", {write("a.jsonl", text)});
  json["global_batch_size"] = json["microbatch_size"] = 2;
  const auto num_padded = [&](std::int64_t buffer_size) {
    json["view"]["sort_buffer_size"] = buffer_size;
    std::int64_t count = 0;
    const auto stream = build(json);
    while (auto pack = stream->next()) {
      for (const std::int64_t label : values(pack->front().labels)) count += label == kIgnoreIndex ? 1 : 0;
    }
    return count;
  };
  EXPECT_EQ(num_padded(0), 4 * 6);
  EXPECT_EQ(num_padded(2), 4 * 6) << "a buffer has one pack";
  EXPECT_EQ(num_padded(4), 0);
}

// Documents of 6, 6, 3 and 3 positions. A 6 and a 3 fill a sequence of 9 if they are in one buffer.
TEST_F(TextOfAJob, Is_packed_in_buffers_of_the_size_that_the_key_says) {
  std::string text;
  for (const int length : {7, 7, 4, 4}) text += "{\"text\": \"" + std::string(length, 'a') + "\"}\n";
  nlohmann::json json = documents("jsonl", {write("a.jsonl", text)});
  json["view"] = {{"kind", "packed"}};
  const auto num_sequences = [&](std::int64_t buffer_size) {
    json["view"]["buffer_size"] = buffer_size;
    std::int64_t count = 0;
    const auto stream = build(json);
    while (stream->next()) ++count;
    return count;
  };
  EXPECT_EQ(num_sequences(1), 4);
  EXPECT_EQ(num_sequences(2), 3);
  EXPECT_EQ(num_sequences(4), 2);
}

TEST_F(TextOfAJob, With_nothing_to_predict_is_refused_or_told) {
  const auto path = write(
      "a.jsonl", "{\"prompt\": \"123456789\", \"text\": \"ab\"}\n{\"prompt\": \"1234567890\", \"text\": \"cd\"}\n");
  nlohmann::json json = documents("jsonl", {path});
  json.update({{"prompt_column", "prompt"}, {"view", {{"kind", "documents"}, {"long_documents", "truncate"}}}});
  EXPECT_THAT(log_of(json), HasSubstr("in 1 of 2 samples nothing is predicted"));
  json["sequence_length"] = 8;
  EXPECT_THAT(error_of(json), AllOf(HasSubstr("the answers of all 2 samples"), HasSubstr("behind position 8")));
  json["view"]["long_documents"] = "split";
  EXPECT_THAT(log_of(json), HasSubstr("in 2 of 4 samples nothing is predicted"));
  json["view"] = {{"kind", "streamed"}, {"long_documents", "truncate"}};
  EXPECT_THAT(log_of(json, 1), HasSubstr("in part 0 nothing is predicted"));
}

TEST_F(TextOfAJob, Names_the_key_of_a_tokenizer_that_is_not_there) {
  nlohmann::json json = documents("jsonl", {write("a.jsonl", "{\"text\": \"ab\"}\n")});
  json["tokenizer"] = "Qwen/Qwen3-0.6B";
  EXPECT_THAT(error_of(json), AllOf(HasSubstr("\"tokenizer\""), HasSubstr("does not exist"), HasSubstr("hf download")));
  json["tokenizer"] = folder.string();
  EXPECT_THAT(error_of(json), AllOf(HasSubstr("the folder"), HasSubstr("Name the file")));
}

TEST_F(TextOfAJob, Of_a_vocabulary_without_a_byte_has_bad_rows_where_it_occurs) {
  nlohmann::json tokenizer = nlohmann::json::parse(test::byte_tokenizer());
  const std::string name = "\u0104";  // represents byte 4
  tokenizer["model"]["vocab"]["unused"] = tokenizer["model"]["vocab"].at(name);
  tokenizer["model"]["vocab"].erase(name);
  nlohmann::json json = documents("jsonl", {write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"a\\u0004\"}\n")});
  json["tokenizer"] = write("tokenizer.json", tokenizer.dump());
  EXPECT_THAT(test::message_of<IoError>([&] { (void)read(json); }),
              AllOf(HasSubstr("got byte 4, for which it has no token"), HasSubstr("in line 2 of")));
  json["bad_rows"] = "skip";
  EXPECT_THAT(read(json), ElementsAre(Ids{'a', 'b'}));
}

TEST_F(TextOfAJob, Is_read_by_the_prefix_of_a_dataset_of_Megatron) {
  nlohmann::json json = documents("megatron", {D9D_SOURCE_DIR "/tests/data/source/megatron/uint16.idx"});
  json.erase("cache");
  json["view"]["long_documents"] = "truncate";
  const auto read_large = [](const nlohmann::json& own) {
    std::vector<Ids> all;
    const auto stream = build_token_stream(parse_record<DataConfig>(own, {.keys = "data"}), {.vocabulary_size = 50257});
    while (auto pack = stream->next()) all.push_back(values(pack->front().input_ids));
    return all;
  };
  const std::vector<Ids> by_index = read_large(json);
  json["paths"] = {D9D_SOURCE_DIR "/tests/data/source/megatron/uint16"};
  EXPECT_EQ(read_large(json), by_index);
  json["paths"] = {D9D_SOURCE_DIR "/tests/data/source/megatron/uint16.*"};
  EXPECT_EQ(read_large(json), by_index) << "each dataset once";
}

TEST_F(TextOfAJob, Is_kept_where_the_cache_is) {
  const auto path = write("a.txt", "ab");
  nlohmann::json json = documents("text", {path});
  json["end_of_document"] = "!";
  EXPECT_THAT(read(json), ElementsAre(Ids{'a', 'b', '!'}));
  const auto entries = std::distance(std::filesystem::directory_iterator(folder / "cache"), {});
  EXPECT_EQ(entries, 1);
}

TEST_F(TextOfAJob, Is_that_of_the_split_in_folders_of_datasets) {
  std::filesystem::create_directories(folder / "hub" / "data");
  std::filesystem::create_directories(folder / "more");
  write("hub/data/train.jsonl", "{\"text\": \"ab\"}\n");
  write("hub/data/test.jsonl", "{\"text\": \"cd\"}\n");
  write("more/train.jsonl", "{\"text\": \"ef\"}\n");
  nlohmann::json json = documents("arrow", {folder / "hub"});
  EXPECT_THAT(read(json), ElementsAre(Ids{'a', 'b'}));
  json["split"] = "test";
  EXPECT_THAT(read(json), ElementsAre(Ids{'c', 'd'}));
  json = documents("arrow", {folder / "hub", folder / "more"});
  EXPECT_THAT(read(json), ElementsAre(Ids{'a', 'b'}, Ids{'e', 'f'}));
  for (const char* part : {"hub/data/train-00000-of-00002.jsonl", "more/train-00001-of-00002.jsonl"}) {
    write(part, "{\"text\": \"ef\"}\n");
  }
  const std::string log = log_of(json);
  constexpr const char* kMissing = "hub/data/train-00000-of-00002.jsonl' is one of";
  EXPECT_THAT(log, HasSubstr(kMissing));
  EXPECT_EQ(log.find(kMissing), log.rfind(kMissing)) << "once: " << log;
  write("more/train.jsonl", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_THAT(test::message_of<IoError>([&] { (void)read(json); }), HasSubstr("git lfs pull"));
  json["paths"].push_back(write("a.arrow", ""));
  EXPECT_THAT(error_of(json), HasSubstr("paths of one format"));
}

// The second of two ranks streams 60 documents of 3 to 20 tokens.
class StreamedTextOfAJob : public TextOfAJob {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 60; ++i) {
      text +=
          "{\"text\": \"" + std::string(1 + i * 7 % 17, static_cast<char>('a' + i % 26)) + std::to_string(i) + "\"}\n";
    }
    path = write("a.jsonl", text);
    bad_path = write("b.jsonl", text + "nothing\n");
  }
  nlohmann::json job() const {
    return {{"kind", "jsonl"},
            {"paths", {path}},
            {"end_of_document", "."},
            {"sequence_length", 24},
            {"view", {{"kind", "streamed"}, {"buffer_size", 8}, {"tokens_per_step", 200}}},
            {"shuffle", true},
            {"global_batch_size", 4},
            {"microbatch_size", 1},
            {"num_workers", 0}};
  }
  // The options of the stream that job() describes.
  static StreamedOptions options() {
    return {.part = {.tokenize = {.end_of_document = '.'},
                     .max_positions = 24,
                     .buffer_size = 8,
                     .seed = 3,
                     .shuffle = true},
            .tokens_per_step = 200,
            .global_batch_size = 4,
            .microbatch_size = 1,
            .rank = kRank,
            .repeat = true};
  }
  static std::vector<Ids> first_packs(PackStream<TokenBatch>& stream) {
    std::vector<Ids> all;
    for (int i = 0; i < 5; ++i) {
      const auto pack = stream.next().value();
      for (const TokenBatch& batch : pack) {
        all.push_back(values(batch.input_ids));
        all.push_back(values(batch.labels));
        all.push_back({batch.input_ids.size(0)});
      }
      all.emplace_back();  // marks the end of a pack
    }
    return all;
  }
  static std::vector<Ids> of_json(const nlohmann::json& json) {
    return first_packs(*build(json, {.rank = kRank, .seed = 3, .repeat = true}));
  }
  std::vector<Ids> of_options(const StreamedOptions& own) const {
    StreamedPacks stream(
        std::make_shared<const JsonlRows>(std::vector<std::filesystem::path>{path}, std::vector<std::string>{"text"}),
        std::make_shared<const ByteEncoder>(), own);
    return first_packs(stream);
  }

  std::string path, bad_path;
};

TEST_F(StreamedTextOfAJob, Is_the_stream_that_the_keys_describe) {
  struct Case {
    nlohmann::json keys;
    std::function<void(StreamedOptions&)> change;
  };
  const std::vector<Case> cases{
      {{{"view", {{"buffer_size", 16}}}}, [](StreamedOptions& own) { own.part.buffer_size = 16; }},
      {{{"view", {{"tokens_per_step", 0}}}}, [](StreamedOptions& own) { own.tokens_per_step = 0; }},
      {{{"sequence_length", 30}}, [](StreamedOptions& own) { own.part.max_positions = 30; }},
      {{{"sequence_length", 10}, {"view", {{"long_documents", "truncate"}}}},
       [](StreamedOptions& own) {
         own.part.max_positions = 10;
         own.part.long_documents = LongDocuments::kTruncate;
       }},
      {{{"end_of_document", "!"}}, [](StreamedOptions& own) { own.part.tokenize.end_of_document = '!'; }},
      {{{"shuffle", false}}, [](StreamedOptions& own) { own.part.shuffle = false; }},
      {{{"shard_indexing_mode", "chunked"}}, [](StreamedOptions& own) { own.mode = ShardIndexingMode::kChunked; }},
      {{{"global_batch_size", 8}}, [](StreamedOptions& own) { own.global_batch_size = 8; }},
      {{{"microbatch_size", 2}}, [](StreamedOptions& own) { own.microbatch_size = 2; }}};
  const auto plain = of_json(job());
  EXPECT_EQ(plain, of_options(options()));
  for (const auto& [keys, change] : cases) {
    nlohmann::json json = job();
    json.merge_patch(keys);
    StreamedOptions own = options();
    change(own);
    const auto expected = of_options(own);
    EXPECT_EQ(of_json(json), expected) << keys;
    EXPECT_NE(plain, expected) << keys;
  }
}

TEST_F(StreamedTextOfAJob, Is_the_same_with_workers_and_without_bad_rows) {
  nlohmann::json json = job();
  json["num_workers"] = 3;
  EXPECT_EQ(of_json(json), of_options(options()));
  json["paths"] = {bad_path};
  EXPECT_THAT(test::message_of<IoError>([&] { (void)of_json(json); }), HasSubstr("line 61 of"));
  json["bad_rows"] = "skip";
  EXPECT_EQ(of_json(json), of_options(options()));
}

TEST_F(StreamedTextOfAJob, Goes_on_without_the_bad_rows_at_which_it_ended) {
  nlohmann::json json = job();
  json.update({{"shuffle", false}, {"paths", {path, bad_path}}});
  const auto refusing = build(json, {.rank = kRank});
  int num_packs = 0;
  EXPECT_THAT(test::message_of<IoError>([&] {
                while (refusing->next()) ++num_packs;
              }),
              HasSubstr("line 61 of"));
  ASSERT_GT(num_packs, 0);
  json["bad_rows"] = "skip";
  const auto whole = build(json, {.rank = kRank}), resumed = build(json, {.rank = kRank});
  for (int i = 0; i < num_packs; ++i) (void)whole->next();
  resumed->load_state(refusing->state());
  EXPECT_EQ(values(resumed->next().value().front().labels), values(whole->next().value().front().labels));
  EXPECT_EQ(resumed->state(), whole->state());
  EXPECT_THROW(refusing->load_state(whole->state()), StateError);
}

TEST_F(StreamedTextOfAJob, Is_refused_with_keys_that_have_no_effect_and_for_other_sources) {
  for (const nlohmann::json& keys :
       {nlohmann::json{{"num_workers", 1}, {"timeout", 1.0}}, nlohmann::json{{"drop_last", false}},
        nlohmann::json{{"num_workers", 1}, {"prefetch_factor", 2}}}) {
    nlohmann::json json = job();
    json.update(keys);
    EXPECT_THAT(error_of(json), HasSubstr("remove the keys")) << keys;
  }
  nlohmann::json tokens = job();
  tokens.erase("paths");
  tokens.update({{"kind", "tokens"}, {"path", path}, {"dtype", "uint8"}, {"end_of_document", '.'}});
  EXPECT_THAT(error_of(tokens), HasSubstr("expected a source of text"));
  nlohmann::json source = job();
  for (const auto* key : {"shuffle", "global_batch_size", "microbatch_size", "num_workers"}) source.erase(key);
  source["cache"] = (folder / "cache").string();
  const nlohmann::json mixture = {{"kind", "mixture"},
                                  {"sources", {{{"weight", 1}, {"source", source}}}},
                                  {"global_batch_size", 4},
                                  {"microbatch_size", 1},
                                  {"num_workers", 0}};
  EXPECT_THAT(error_of(mixture), HasSubstr("Take it out of the mixture"));
}

}  // namespace
}  // namespace d9d::token_stream_text_test
