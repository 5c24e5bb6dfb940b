// Data providers that follow a configuration record, which is what most jobs need. If trainer.schedule.total_steps is
// set, the data is repeated as often as needed, shuffled anew in each pass.
//
// Example
//   auto tokens = token_data_provider(config.data, {.vocabulary_size = 256, .max_positions = 1024}, /*base_seed=*/7);
//   AutoDataProvider<Batch> data([](const DistContext&) { return std::make_shared<const Pairs>("a.bin"); }, collate,
//                                config.data, /*base_seed=*/7);         // a custom dataset
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/config/record_json.h"
#include "d9d/data/build/token_stream.h"
#include "d9d/loop/task/providers.h"

namespace d9d {

namespace detail {
void log_stream(const AnyPackStream& stream, const Logger& log);
}  // namespace detail

template <class Batch>
class AutoDataProvider : public DataProvider<Batch> {
 public:
  using BuildStream =
      std::function<std::unique_ptr<PackStream<Batch>>(const DistContext& context, const StreamOptions& options)>;

  // Streams a dataset with make_pack_stream(). make_dataset(context) returns the dataset as a std::shared_ptr.
  template <class MakeDataset, class Collate>
  AutoDataProvider(MakeDataset make_dataset, Collate collate, AutoDataConfig config, std::int64_t base_seed)
      : AutoDataProvider(
            [make_dataset = std::move(make_dataset), collate = std::move(collate), config = std::move(config)](
                const DistContext& context, const StreamOptions& options) {
              return make_pack_stream<Batch>(make_dataset(context), collate, config, options);
            },
            base_seed, write_record(config)) {}
  // Takes any stream from `build`, which gets the options of the rank (on_rank_of()). hparams: the result of
  // dump_hparams().
  AutoDataProvider(BuildStream build, std::int64_t base_seed, nlohmann::json hparams = nullptr)
      : build_(std::move(build)), base_seed_(base_seed), hparams_(std::move(hparams)) {}

  // The first rank of each machine builds its stream before the other ranks, which reuse the files that it has written.
  // The main process logs the stream's describe().
  std::unique_ptr<PackStream<Batch>> build_pack_stream(const DistContext& context,
                                                       std::optional<std::int64_t> total_steps) override {
    const StreamOptions options =
        on_rank_of(context, {.seed = static_cast<std::uint64_t>(base_seed_), .repeat = total_steps.has_value()});
    std::unique_ptr<PackStream<Batch>> built;
    context.local_main_process_first([&] { built = build_(context, options); });
    if (built != nullptr) detail::log_stream(*built, options.shared_log);
    return built;
  }
  nlohmann::json dump_hparams() const override { return hparams_; }

 private:
  BuildStream build_;
  std::int64_t base_seed_;
  nlohmann::json hparams_;
};

// The limits of the model that the data must respect.
struct TokenLimits {
  std::int64_t vocabulary_size;
  std::int64_t max_positions;
};

// Returns a provider of token sequences as the section "data" of a configuration describes them (build_token_stream()).
[[nodiscard]] AutoDataProvider<TokenBatch> token_data_provider(DataConfig config, const TokenLimits& limits,
                                                               std::int64_t base_seed);
// Returns a provider of pairs of answers, for DpoTask, likewise (build_pair_stream()).
[[nodiscard]] AutoDataProvider<TokenBatch> pair_data_provider(DataConfig config, const TokenLimits& limits,
                                                              std::int64_t base_seed);

}  // namespace d9d
