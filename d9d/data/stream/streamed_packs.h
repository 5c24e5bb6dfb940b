// Packs of rows that are tokenised while the job runs, for data that is read once: nothing is written, and the first
// step waits for one part of the rows only.
//
// Example
//   StreamedPacks stream(rows, encoder, {.part = {.max_positions = 2048, .seed = 1337}, .global_batch_size = 64,
//                                        .microbatch_size = 4, .rank = {1, 4}, .num_workers = 8});
//   while (auto pack = stream.next()) step(*pack);
//
// The rows come in the parts of their source, shuffled by (seed, epoch); the documents of a part are packed into
// sequences and shuffled by (seed, epoch, part). A step takes global_batch_size sequences, and as many again until they
// have tokens_per_step positions: how many microbatches it has varies, and is the same on all ranks. What a step has
// depends neither on the number of ranks nor of workers. Every rank tokenises all rows: where data is read more than
// once, or by many ranks, tokenise it into the cache instead (view "packed").
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "d9d/base/log.h"
#include "d9d/data/loader/ordered_workers.h"
#include "d9d/data/order/global_batch_sampler.h"
#include "d9d/data/pack/pack_stream.h"
#include "d9d/data/stream/streamed_part.h"

namespace d9d {

struct StreamedOptions {
  StreamedPartOptions part = {};     // `seed` and `shuffle` are those of the whole stream
  std::int64_t tokens_per_step = 0;  // positions without padding over all ranks; 0: global_batch_size sequences
  std::int64_t global_batch_size = 1;
  std::int64_t microbatch_size = 1;
  DataParallelRank rank = {};
  ShardIndexingMode mode = ShardIndexingMode::kSequential;
  std::int64_t num_workers = 0;                         // threads, of which each has a part; 0: next() tokenises
  bool repeat = false;                                  // endless epochs
  std::function<TokenBatch(TokenBatch)> on_batch = {};  // applied to each microbatch: pinning
  Logger log = Logger();                                // is warned of rows that are skipped
};

class StreamedPacks final : public PackStream<TokenBatch> {
 public:
  // Throws ConfigError if the batch sizes and ranks do not fit, or if there is no part.
  StreamedPacks(std::shared_ptr<const TextRows> rows, std::shared_ptr<const TextEncoder> encoder,
                StreamedOptions options);

  void start() override;
  // Sequences that are left at the end and do not fill a step are dropped. Throws IoError as make_streamed_part(); the
  // position does not change then.
  [[nodiscard]] std::optional<std::vector<TokenBatch>> next() override;
  [[nodiscard]] std::vector<std::int64_t> microbatch_numbers() const override;
  [[nodiscard]] std::optional<std::int64_t> total_steps() const override { return std::nullopt; }
  // The part and the sequence in it where the next step begins. load_state() throws StateError if the rows, the
  // tokenizer or their order are others (copies of the files are the same); it warns of a position of an earlier
  // version, whose rows it cannot compare. Ranks, workers and batch sizes may change, and so may the rule
  // for bad rows or for long documents that refused them.
  [[nodiscard]] nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  struct Position {
    std::int64_t part = 0;      // counted over epochs
    std::int64_t sequence = 0;  // of the part
  };
  [[nodiscard]] std::shared_ptr<const StreamedPart> make(std::int64_t part) const;
  [[nodiscard]] bool move_to_sequence(Position& position);
  [[nodiscard]] std::optional<std::int64_t> num_parts() const;

  std::shared_ptr<const TextRows> rows_;
  std::shared_ptr<const TextEncoder> encoder_;
  StreamedOptions options_;
  nlohmann::json order_;  // what the position belongs to
  Position position_;
  std::int64_t loaded_part_ = -1;
  bool has_remarked_ = false;
  std::shared_ptr<const StreamedPart> loaded_;
  std::int64_t num_microbatches_ = 0;  // of the last pack
  std::unique_ptr<OrderedWorkers<std::shared_ptr<const StreamedPart>>> workers_;
};

}  // namespace d9d
