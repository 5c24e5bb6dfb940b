// Tokens a second that one thread reads from the cache of tokenised text, in each view, as whole microbatches.
//   build/release/bin/data_benchmark
// benchmarks/data/beside_peer.py reads the same documents with torch.utils.data and datasets.
#include <filesystem>
#include <memory>
#include <random>

#include <benchmark/benchmark.h>

#include "d9d/base/io/atomic_file.h"
#include "d9d/data/build/token_stream.h"
#include "d9d/data/source/tokenized_documents.h"

namespace d9d {
namespace {

constexpr std::int64_t kNumDocuments = 40000;
constexpr std::int64_t kSequenceLength = 2048;
constexpr std::int64_t kMicrobatch = 8;

// Documents of 32 to 1,500 random bytes, as rows of JSON lines, written once.
std::filesystem::path rows() {
  const auto path = std::filesystem::temp_directory_path() / "d9d_data_benchmark.jsonl";
  if (std::filesystem::exists(path)) return path;
  std::mt19937 random(1);
  AtomicFile file(path);
  for (std::int64_t i = 0; i < kNumDocuments; ++i) {
    std::string text(32 + random() % 1468, ' ');
    for (char& c : text) c = static_cast<char>('a' + random() % 26);
    file.write("{\"text\": \"" + text + "\"}\n");
  }
  file.commit();
  return path;
}

DataConfig config(const ViewConfig& view) {
  JsonlSource source{.sequence = {.sequence_length = kSequenceLength, .view = view}};
  source.columns.paths = {rows().string()};
  source.columns.tokenization = {.end_of_document = "~",
                                 .cache = std::filesystem::temp_directory_path() / "d9d_data_benchmark"};
  return JsonlDataConfig{.source = source,
                         .loader = {.global_batch_size = kMicrobatch, .microbatch_size = kMicrobatch, .shuffle = true}};
}

void read(benchmark::State& state, const ViewConfig& view) {
  const auto stream = build_token_stream(config(view), {.vocabulary_size = 256, .stream = {.repeat = true}});
  std::int64_t num_tokens = 0;
  for (auto _ : state) {
    const auto pack = stream->next();
    for (const TokenBatch& batch : *pack) num_tokens += batch.input_ids.numel();
  }
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(num_tokens), benchmark::Counter::kIsRate);
}

BENCHMARK_CAPTURE(read, concatenated, ConcatenatedViewConfig{});
BENCHMARK_CAPTURE(read, documents, DocumentsViewConfig{});
BENCHMARK_CAPTURE(read, sorted, DocumentsViewConfig{.sort_buffer_size = 1024});
BENCHMARK_CAPTURE(read, packed, PackedViewConfig{});

}  // namespace
}  // namespace d9d

BENCHMARK_MAIN();
