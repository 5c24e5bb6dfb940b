// What the sharded units of one model stage share: memory, streams, the order in which they are gathered.
//
// Example
//   auto fsdp = std::make_shared<FsdpRuntime>(FsdpConfig{});
//   const std::vector<FsdpAxes> axes = {{.mesh = dense, .shard_axis = "dp_cp_shard"}};
//   parallelize_fsdp(fsdp, {embedding}, axes);
//   for (const auto& layer : layers) parallelize_fsdp(fsdp, {layer}, axes);
//   parallelize_fsdp(fsdp, {norm, head}, axes);
//   model->materialize(device);                       // Collective: slices only
//   model->reset_parameters(seed);                    // the numbers of one rank
//
// In one step, from its first forward with gradients to wait(), parameters must not be written: where the slices come
// together by copies (fsdp_config.h) a rank reads those of others while these compute. Between steps they may be
// written in any way, and a forward without gradients then sees them.
//
// Units are declared in the order in which forward uses them. The order of gathers is recorded in the first microbatch;
// from then on the next unit is gathered while one computes, and a forward in another order is a StateError. Backward
// may leave out units and modules that no loss uses, and come to some that the first microbatch left out: those are
// gathered when they are needed. A forward without gradients gathers as it goes and is not part of the order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/base/log.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/offload/offload.h"
#include "d9d/modules/base/gradient_reduction.h"
#include "d9d/parallelism/fsdp/fsdp_config.h"
#include "d9d/parallelism/fsdp/fsdp_unit.h"
#include "d9d/parallelism/fsdp/gather_arena.h"
#include "d9d/parallelism/fsdp/shard_gather.h"

namespace d9d {

// Graphs of the modules' forward hold it until their backward.
class FsdpRuntime final : public GradientReduction,
                          public Offloadable,
                          public std::enable_shared_from_this<FsdpRuntime> {
 public:
  // log: where it says, once, how slices come together; none: nowhere.
  explicit FsdpRuntime(FsdpConfig config, std::optional<Logger> log = std::nullopt)
      : config_(config), log_(std::move(log)) {}

  void begin_microbatch(bool is_last) override;
  void end_microbatch() override;
  void wait() override;
  void clear() override;
  void abandon() override;

  // Slices go to the host; memory of gathers and gradients is given back. Collective where slices are copied from
  // peers. Offloading forgets gradients.
  void offload(const OffloadContext& context) override;
  void onload(const OnloadContext& context) override;
  [[nodiscard]] bool is_offloaded() const override { return is_offloaded_; }
  void close() override;

  [[nodiscard]] const FsdpConfig& config() const { return config_; }
  // All-gathers and reductions of units since construction.
  [[nodiscard]] std::int64_t num_gathers() const { return num_gathers_; }
  [[nodiscard]] std::int64_t num_reductions() const { return num_reductions_; }

  // For parallelize_fsdp and for units.
  FsdpUnit& add_unit(std::string name, std::vector<std::unique_ptr<FlatGroup>> groups, std::size_t num_modules,
                     bool stays_gathered);
  void materialize(at::Device device);  // Collective; once, whoever asks
  enum class Pass : std::uint8_t { kForward, kBackward, kWithoutGradients };
  // Collective unless gathered: local() of the unit's parameters can be used when it returns. With gradients the next
  // unit of the recorded order is gathered ahead.
  void request(FsdpUnit& unit, Pass pass);
  void forward_ended(FsdpUnit& unit);
  void backward_ended(FsdpUnit& unit);     // Collective
  void provide_gradients(FsdpUnit& unit);  // memory for the unit's full gradient

 private:
  struct Entry {
    std::unique_ptr<FsdpUnit> unit;
    std::optional<std::size_t> arena_index;  // none: stays gathered in memory of its own
    at::Tensor own_memory;
    StreamEvent ready;                         // of the last gather
    std::optional<std::size_t> gradient_slot;  // while its full gradient lies there
  };
  // What crosses between the ranks over which some groups are cut.
  struct Exchange {
    std::shared_ptr<Communicator> ranks;
    std::int64_t slice_bytes = 0;     // of parameters, of all groups
    std::int64_t gradient_bytes = 0;  // of the unit with most
    std::shared_ptr<ShardGather> gather;
    std::shared_ptr<ShardReduce> reduce;
    at::Tensor gradient_slots;  // kByte [slots, gradient_bytes]; undefined: not allocated
  };
  void make_exchanges();
  [[nodiscard]] Exchange& exchange_of(const FlatGroup& group);
  void open_gradient_slots();
  void close_exchanges();
  void begin_reading();
  void end_reading();
  [[nodiscard]] std::size_t index_of(const FsdpUnit& unit) const;
  void advance(std::size_t index, Pass pass);
  [[nodiscard]] std::optional<std::size_t> next() const;  // in the recorded order
  void gather(std::size_t index);
  void release(std::size_t index);
  void reduce(FsdpUnit& unit);
  void complete_step();

  // Of requests in a microbatch.
  struct Request {
    std::size_t index;
    Pass pass;
  };

  FsdpConfig config_;
  std::optional<Logger> log_;
  std::vector<Entry> entries_;
  std::vector<Exchange> exchanges_;   // by ranks, in the order of their first groups
  std::optional<GatherArena> arena_;  // from materialize on
  std::optional<SideStream> gather_stream_;
  std::optional<SideStream> reduce_stream_;
  at::Device device_ = at::kCPU;

  std::vector<Request> order_;
  std::size_t position_ = 0;
  bool is_recorded_ = false;
  bool is_last_microbatch_ = true;
  bool is_reading_ = false;  // ranks may read each other's slices

  std::vector<StreamEvent> slot_is_free_;  // of gradient slots, which are taken in turn
  std::size_t next_slot_ = 0;
  StreamEvent reduced_;  // the last reduction
  bool is_offloaded_ = false;
  OffloadedTensors offloaded_;
  std::int64_t num_gathers_ = 0;
  std::int64_t num_reductions_ = 0;
};

}  // namespace d9d
