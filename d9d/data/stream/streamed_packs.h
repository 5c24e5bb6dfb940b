// A pack stream that tokenises rows while the job runs, for data that is read once. No cache is written, and the first
// step waits only for the first part of the rows.
//
// Example
//   StreamedPacks stream(rows, encoder, {.part = {.max_positions = 2048, .seed = 1337}, .global_batch_size = 64,
//                                        .microbatch_size = 4, .rank = {1, 4}, .num_workers = 8});
//   while (auto pack = stream.next()) step(*pack);
//
// The parts of the source are read in an order that depends on (seed, epoch). The documents of a part are packed into
// sequences and shuffled by (seed, epoch, part). A step takes global_batch_size sequences, and as many again until all
// of them together have at least tokens_per_step positions. So the number of microbatches varies between steps, but is
// the same on all ranks. The contents of a step depend neither on the number of ranks nor on the number of workers.
// Every rank tokenises all rows: for data that is read more than once, or by many ranks, tokenise it into the cache
// instead (view "packed").
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
  std::int64_t length_multiple = 1;  // sequences are padded to a multiple of it, so that ranks can share each
  DataParallelRank rank = {};
  ShardIndexingMode mode = ShardIndexingMode::kSequential;
  std::int64_t num_workers = 0;                         // threads, each tokenising a part; 0: next() tokenises
  bool repeat = false;                                  // endless epochs
  std::function<TokenBatch(TokenBatch)> on_batch = {};  // applied to each microbatch, e.g. pinning
  Logger log = Logger();                                // warns of skipped rows
};

class StreamedPacks final : public PackStream<TokenBatch> {
 public:
  // Throws ConfigError if the batch sizes and ranks do not fit, or if the rows have no part.
  StreamedPacks(std::shared_ptr<const TextRows> rows, std::shared_ptr<const TextEncoder> encoder,
                StreamedOptions options);

  void start() override;
  // Drops the last sequences if they do not fill a step. Throws the IoError of make_streamed_part(); the position does
  // not change then.
  [[nodiscard]] std::optional<std::vector<TokenBatch>> next() override;
  [[nodiscard]] std::vector<std::int64_t> microbatch_numbers() const override;
  [[nodiscard]] DataDescription describe() const override;
  [[nodiscard]] std::optional<std::int64_t> total_steps() const override { return std::nullopt; }
  // state() returns the part, and the sequence in it, at which the next step begins. load_state() throws StateError if
  // the rows, the tokenizer or the order of the rows differ from those of the saved run; copies of the same files count
  // as equal. If an earlier version saved the state, load_state() cannot compare the rows, and warns. Ranks, workers
  // and batch sizes may change. If the saved rule for bad rows or long documents was "refuse", that rule may change
  // too.
  [[nodiscard]] nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  struct Position {
    std::int64_t part = 0;      // counted from 0 through all epochs
    std::int64_t sequence = 0;  // index of the sequence in the part
  };
  [[nodiscard]] std::shared_ptr<const StreamedPart> make(std::int64_t part) const;
  [[nodiscard]] bool move_to_sequence(Position& position);
  [[nodiscard]] std::optional<std::int64_t> num_parts() const;

  std::shared_ptr<const TextRows> rows_;
  std::shared_ptr<const TextEncoder> encoder_;
  StreamedOptions options_;
  nlohmann::json order_;  // identifies the data and order to which the position belongs
  Position position_;
  std::int64_t loaded_part_ = -1;
  bool has_remarked_ = false;
  std::shared_ptr<const StreamedPart> loaded_;
  std::int64_t num_microbatches_ = 0;  // microbatches in the last pack
  std::unique_ptr<OrderedWorkers<std::shared_ptr<const StreamedPart>>> workers_;
};

}  // namespace d9d
