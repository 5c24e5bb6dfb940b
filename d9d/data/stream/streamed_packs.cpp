#include "d9d/data/stream/streamed_packs.h"

#include <string>
#include <utility>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/data/order/num_microbatches.h"
#include "d9d/data/order/permutation.h"

namespace d9d {

namespace {

nlohmann::json order_of(const TextRows& rows, const TextEncoder& encoder, const StreamedPartOptions& part) {
  const std::string tokenised =
      cat(rows.content_fingerprint(), "\n", encoder.fingerprint(), "\n", part.tokenize.end_of_document.value_or(-1));
  const DocumentsIdentity identity{.tokens = hash_text(tokenised), .tokenizer = encoder.identity()};
  return {{"data", nlohmann::json::array({to_json(identity)})},
          {"num_parts", rows.num_parts()},
          {"max_positions", part.max_positions},
          {"bad_rows", enum_name(part.tokenize.bad_rows)},
          {"long_documents", enum_name(part.long_documents)},
          {"buffer_size", part.buffer_size},
          {"shuffle_seed", part.shuffle ? nlohmann::json(part.seed) : nlohmann::json(nullptr)}};
}

// Returns the saved order with this run's rules in place of those that were "refuse". A run under the rule "refuse" met
// no bad row or long document up to the saved position, so its samples up to there are the same under any other rule.
nlohmann::json with_rules_of(nlohmann::json saved, const nlohmann::json& order) {
  for (const char* rule : {"bad_rows", "long_documents"}) {
    if (saved.at(rule) == "refuse") saved[rule] = order.at(rule);
  }
  return saved;
}

// Removes the identity of the data from a saved order: the key "data", or in earlier versions "rows", which has the
// names and times of files.
nlohmann::json without_data(nlohmann::json order) {
  for (const char* key : {"data", "rows"}) order.erase(key);
  return order;
}

void check_order(const nlohmann::json& saved, const nlohmann::json& own, const Logger& log) {
  const bool knows_data = saved.contains("data");
  const std::string difference = knows_data ? difference_of_data(saved.at("data"), own.at("data")) : "";
  D9D_CHECK(difference.empty(), StateError, "[data::StreamedPacks] expected the data that the saved run began with",
            difference, ". ", kOtherDataRemedy);
  const nlohmann::json before = without_data(with_rules_of(saved, own)), now = without_data(own);
  D9D_CHECK(before == now, StateError, "[data::StreamedPacks] expected the data order of the saved run, ", before,
            ", got ", now,
            ". Resume with the view and the seed of the saved run, or give trainer.data_phase a new name to "
            "begin with this data at its start.");
  if (!knows_data) log.warning("data: the saved position does not say what its data was: make sure that it is this");
}

}  // namespace

StreamedPacks::StreamedPacks(std::shared_ptr<const TextRows> rows, std::shared_ptr<const TextEncoder> encoder,
                             StreamedOptions options)
    : rows_(std::move(rows)),
      encoder_(std::move(encoder)),
      options_(std::move(options)),
      order_(order_of(*rows_, *encoder_, options_.part)) {
  (void)num_microbatches_for_global_batch({.data_parallel_size = options_.rank.size,
                                           .global_batch_size = options_.global_batch_size,
                                           .microbatch_size = options_.microbatch_size});
  D9D_CHECK(rows_->num_parts() > 0, ConfigError,
            "[data::StreamedPacks] expected rows, got none. Check the paths of the data.");
}

std::optional<std::int64_t> StreamedPacks::num_parts() const {
  if (options_.repeat) return std::nullopt;
  return rows_->num_parts();
}

std::shared_ptr<const StreamedPart> StreamedPacks::make(std::int64_t part) const {
  const std::int64_t epoch = part / rows_->num_parts(), in_epoch = part % rows_->num_parts();
  StreamedPartOptions own = options_.part;
  own.seed = philox_key(options_.part.seed, "streamed_packs", std::to_string(part));
  const auto shuffled = [&] {
    return Permutation(rows_->num_parts(), {.seed = options_.part.seed, .epoch = epoch})(in_epoch);
  };
  return std::make_shared<const StreamedPart>(
      make_streamed_part(*rows_, *encoder_, own.shuffle ? shuffled() : in_epoch, own));
}

void StreamedPacks::start() {
  if (options_.num_workers == 0 || workers_) return;
  workers_ = std::make_unique<OrderedWorkers<std::shared_ptr<const StreamedPart>>>(
      [this](std::int64_t part) { return make(part); },
      OrderedWorkers<std::shared_ptr<const StreamedPart>>::Options{.first = position_.part,
                                                                   .end = num_parts(),
                                                                   .num_workers = options_.num_workers,
                                                                   .num_ahead = options_.num_workers,
                                                                   .patience = kLongestWait});  // threads use `this`
}

// Moves `position` past parts that have no further sequence, and loads the part at which it arrives. Returns false at
// the end of the data.
bool StreamedPacks::move_to_sequence(Position& position) {
  std::int64_t num_empty = 0;
  while (true) {
    if (num_parts() && position.part >= *num_parts()) return false;
    if (position.part != loaded_part_) {
      start();
      loaded_ = workers_ ? workers_->take() : make(position.part);
      loaded_part_ = position.part;
      if (loaded_->num_skipped() > 0) {
        options_.log.warning("data: skipped ", loaded_->num_skipped(), " bad rows of part ", position.part);
      }
      if (const std::string remark = encoder_->remark(); !remark.empty() && !std::exchange(has_remarked_, true)) {
        options_.log.warning("data: ", remark);
      }
      if (loaded_->predicts_nothing()) {
        options_.log.warning("data: in part ", position.part,
                             " nothing is predicted: its answers are empty or cut off behind position ",
                             options_.part.max_positions);
      }
    }
    if (position.sequence < loaded_->size()) return true;
    num_empty = loaded_->size() == 0 ? num_empty + 1 : 0;
    D9D_CHECK(
        num_empty < rows_->num_parts(), IoError,
        "[data::StreamedPacks] expected a document of two tokens or more, got none in all parts. Check the files and "
        "the names of columns.");
    position = {.part = position.part + 1, .sequence = 0};
  }
}

std::optional<std::vector<TokenBatch>> StreamedPacks::next() {
  std::vector<TokenSample> own;  // samples of this rank
  Position position = position_;
  const std::int64_t per_rank = options_.global_batch_size / options_.rank.size;
  std::int64_t num_positions = 0;
  const auto is_own = [&](std::int64_t i) {
    return options_.mode == ShardIndexingMode::kSequential ? i % options_.rank.size == options_.rank.index
                                                           : i / per_rank == options_.rank.index;
  };
  try {
    do {
      for (std::int64_t i = 0; i < options_.global_batch_size; ++i) {
        if (!move_to_sequence(position)) {
          load_state(state());
          return std::nullopt;
        }
        num_positions += loaded_->num_positions(position.sequence);
        if (is_own(i)) own.push_back(loaded_->sequence(position.sequence));
        ++position.sequence;
      }
    } while (num_positions < options_.tokens_per_step);
  } catch (...) {
    load_state(state());  // return to where the step began
    throw;
  }
  std::vector<TokenBatch> pack;
  const std::span<const TokenSample> all(own);
  for (std::size_t i = 0; i < own.size(); i += static_cast<std::size_t>(options_.microbatch_size)) {
    TokenBatch batch = collate_fixed_to_multiple(all.subspan(i, static_cast<std::size_t>(options_.microbatch_size)),
                                                 options_.length_multiple);
    pack.push_back(options_.on_batch ? options_.on_batch(std::move(batch)) : std::move(batch));
  }
  position_ = position;
  num_microbatches_ = std::ssize(pack);
  return pack;
}

std::vector<std::int64_t> StreamedPacks::microbatch_numbers() const {
  const std::int64_t per_batch = options_.global_batch_size / options_.rank.size / options_.microbatch_size;
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < num_microbatches_; ++i) {
    const std::int64_t batch = i / per_batch, here = i % per_batch;
    const std::int64_t in_batch = options_.mode == ShardIndexingMode::kSequential
                                      ? here * options_.rank.size + options_.rank.index
                                      : options_.rank.index * per_batch + here;
    numbers.push_back(batch * per_batch * options_.rank.size + in_batch);
  }
  return numbers;
}

DataDescription StreamedPacks::describe() const {
  const StreamedPartOptions& part = options_.part;
  const std::string tokens = options_.tokens_per_step == 0
                                 ? ""
                                 : cat(", and as many again until they have ", options_.tokens_per_step, " positions");
  return {.line = cat("packs of ", counted(options_.global_batch_size, "sequence"), tokens, ", in microbatches of ",
                      options_.microbatch_size, options_.repeat ? ", without end" : ", one epoch"),
          .inputs = {{.line = cat("packed sequences of ", counted(part.max_positions, "position"), ", from buffers of ",
                                  counted(part.buffer_size, "document"), part.shuffle ? ", shuffled in each epoch" : "",
                                  ", too long: ", enum_name(part.long_documents)),
                      .inputs = {{.line = cat(counted(rows_->num_parts(), "part"), ", tokenised while the job runs"),
                                  .inputs = {{.line = rows_->name()}}}}}}};
}

nlohmann::json StreamedPacks::state() const {
  return {{"part", position_.part}, {"sequence", position_.sequence}, {"order", order_}};
}

void StreamedPacks::load_state(const nlohmann::json& state) try {
  check_order(state.at("order"), order_, options_.log);
  const Position position = {.part = state.at("part").get<std::int64_t>(),
                             .sequence = state.at("sequence").get<std::int64_t>()};
  D9D_CHECK(position.part >= 0 && position.sequence >= 0, StateError,
            "[data::StreamedPacks] expected a position in the rows, got part ", position.part, ", sequence ",
            position.sequence, ". Load the state that this stream saved.");
  position_ = position;
  workers_.reset();
  loaded_part_ = -1;
} catch (const nlohmann::json::exception& error) {
  throw StateError(cat("[data::StreamedPacks] expected the state of a stream, got ", state.dump(), " (", error.what(),
                       "). Load the state that this stream saved."));
}

}  // namespace d9d
