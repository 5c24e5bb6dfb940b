// How products of linears exchange rows with other ranks while they are computed: a product begins with the rows that
// are here while others arrive, or sends the rows that others need before it computes its own. Tensor parallelism
// implements it (parallelism/tensor/peer_row_exchange.h).
//
// Legend   W ranks, B batch, S positions of the whole sequence, H features; a rank's shard has S / W of the positions
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace d9d::kernels {

class RowExchange {
 public:
  RowExchange() = default;
  virtual ~RowExchange() = default;
  RowExchange(const RowExchange&) = delete;
  RowExchange& operator=(const RowExchange&) = delete;

  // A block of rows of the whole matrix [B * S, H]: those from `first` on. The block is contiguous.
  using Block = std::function<void(std::int64_t first, const at::Tensor& rows)>;

  // Collective. shard [B, S / W, H] -> [B, S, H], contiguous. Calls `arrived` once for each block of rows, this rank's
  // first; what it queues on the current stream runs when the rows are there. Or, for what is slow with few rows, calls
  // `complete` once for each of the B sequences, when all of its rows are there.
  [[nodiscard]] virtual at::Tensor gather(const at::Tensor& shard, const Block& arrived) const = 0;
  [[nodiscard]] virtual at::Tensor gather_sequences(const at::Tensor& shard, const Block& complete) const = 0;

  // Collective. Returns the sum over ranks of this rank's rows, [B, S / W, H]. Calls `write` once for each block of
  // rows of this rank's summand, which it must write, those of other ranks first; and then `meanwhile`, for work that
  // is queued before the rows of other ranks are needed.
  struct Summand {
    std::vector<std::int64_t> whole;  // its shape, [B, S, H]
    at::TensorOptions options;
  };
  [[nodiscard]] virtual at::Tensor scatter(const Summand& summand, const Block& write,
                                           const std::function<void()>& meanwhile) const = 0;
  [[nodiscard]] virtual std::int64_t num_ranks() const = 0;
};
using RowExchangePtr = std::shared_ptr<const RowExchange>;  // the graph keeps it until backward

// The exchanges at the edges of an operator; null: none.
struct RowEdges {
  RowExchangePtr input = {};   // the input is a shard, which is gathered; backward scatters the sum of its gradient
  RowExchangePtr output = {};  // the output is a summand, whose sum is scattered; backward gathers its gradient
};

}  // namespace d9d::kernels
