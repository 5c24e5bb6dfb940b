// The gathered parameters of the units of a stage: which units are gathered, and in which memory.
//
// Example
//   UnitGathers gathers(units, exchanges, print);
//   gathers.materialize(device, /*reshards=*/true);
//   gathers.begin_reading();                       // slices are not written from here on
//   gathers.gather(0);
//   gathers.gather(1);                             // ahead, on another stream
//   gathers.wait(0);                               // the current stream may read unit 0
//   gathers.release(0);
//   gathers.end_reading();
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "d9d/core/device/side_stream.h"
#include "d9d/parallelism/fsdp/gather_arena.h"
#include "d9d/parallelism/fsdp/order_print.h"
#include "d9d/parallelism/fsdp/shard_exchanges.h"

namespace d9d {

// Units are identified by their index.
class UnitGathers {
 public:
  // All arguments are borrowed. print: each gather that is a collective is added to it.
  UnitGathers(const FsdpUnits& units, const ShardExchanges& exchanges, OrderPrint& print)
      : units_(units), exchanges_(exchanges), print_(print) {}

  // Called once, when all units have been added. reshards: units share an arena, except for those that stay gathered;
  // otherwise each has memory of its own.
  void materialize(at::Device device, bool reshards);
  [[nodiscard]] bool is_materialized() const { return arena_.has_value(); }

  // Collective. Announces that this rank reads the slices of other ranks, until end_reading(). All ranks begin the
  // exchanges in the same order. begin_reading() returns false, and does nothing, if this has been announced already.
  bool begin_reading();
  void end_reading();

  // Collective if the gather is a collective. Begins to gather the unit; does nothing if it is gathered.
  void gather(std::size_t unit);
  void wait(std::size_t unit) const { entries_[unit].ready.wait(); }  // makes the current stream wait for the gather
  // Releases the unit's memory; does nothing if the unit is not gathered.
  void release(std::size_t unit);
  [[nodiscard]] bool is_in_arena(std::size_t unit) const { return entries_[unit].arena_index.has_value(); }

  void free();     // frees memory until the next gather; no unit may be gathered
  void abandon();  // local: releases all units and ends reading
  void close();    // collective, outside of reading: ShardGather::close()
  [[nodiscard]] std::int64_t num_gathers() const { return num_gathers_; }

 private:
  struct Entry {
    std::optional<std::size_t> arena_index;  // unset: the unit uses own_memory
    at::Tensor own_memory;
    StreamEvent ready;  // the end of the last gather
  };

  const FsdpUnits& units_;
  const ShardExchanges& exchanges_;
  OrderPrint& print_;
  at::Device device_ = at::kCPU;
  std::vector<Entry> entries_;
  std::optional<GatherArena> arena_;  // set by materialize()
  std::optional<SideStream> stream_;
  bool is_reading_ = false;  // ranks may read each other's slices
  std::int64_t num_gathers_ = 0;
};

}  // namespace d9d
