// Tokens of a tokenizer.json that one thread makes of rows of text in a second of processor time: alone, and as packed
// microbatches of the view "streamed". benchmarks/tokenizer/beside_wheel.py calls it.
//   build/release/bin/tokenizer_benchmark TOKENIZER.json ROWS.jsonl
#include <time.h>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/core/launch/launch.h"
#include "d9d/data/build/token_stream.h"
#include "d9d/tokenizer/tokenizer.h"

namespace d9d {
namespace {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

std::vector<std::string> texts_of(const char* rows) {
  std::vector<std::string> texts;
  std::ifstream file(rows);
  for (std::string line; std::getline(file, line);) {
    texts.push_back(nlohmann::json::parse(line).at("text").get<std::string>());
  }
  return texts;
}

nlohmann::json encode(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  const double start = processor_seconds();
  std::int64_t num_tokens = 0;
  for (const std::string& text : texts) {
    std::vector<std::uint32_t> ids;
    tokenizer.append_ids(text, {}, ids);
    num_tokens += std::ssize(ids);
  }
  return {{"num_tokens", num_tokens}, {"seconds", processor_seconds() - start}};
}

// A pass over the rows, reading files and collating included.
nlohmann::json stream(const char* tokenizer, const char* rows, std::int64_t vocabulary_size) {
  JsonlSource source{
      .sequence = {.sequence_length = 2048,
                   .view = StreamedViewConfig{.long_documents = LongDocuments::kSplit, .buffer_size = 1024}}};
  source.columns.paths = {rows};
  source.columns.tokenization.tokenizer = tokenizer;
  const auto packs = build_token_stream(
      JsonlDataConfig{.source = source, .loader = {.global_batch_size = 8, .microbatch_size = 8, .shuffle = true}},
      {.vocabulary_size = vocabulary_size});
  const double start = processor_seconds();
  std::int64_t num_tokens = 0;
  while (const auto pack = packs->next()) {
    for (const TokenBatch& batch : *pack) num_tokens += batch.input_ids.numel();
  }
  return {{"num_tokens", num_tokens}, {"seconds", processor_seconds() - start}};
}

}  // namespace
}  // namespace d9d

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "tokenizer_benchmark TOKENIZER.json ROWS.jsonl\n";
    return 2;
  }
  return d9d::run_reporting_errors([&] {
    const auto tokenizer = d9d::Tokenizer::from_file(argv[1]);
    const nlohmann::json result = {{"encode", d9d::encode(tokenizer, d9d::texts_of(argv[2]))},
                                   {"stream", d9d::stream(argv[1], argv[2], tokenizer.highest_id() + 1)}};
    std::cout << result.dump() << "\n";
  });
}
