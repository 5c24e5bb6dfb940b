#include <algorithm>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include "d9d/base/rounding.h"
#include "d9d/kernels/common/cpu_loops.h"
#include "d9d/kernels/linear_cross_entropy/linear_cross_entropy_impl.h"

namespace d9d::kernels::detail {
namespace {

// On a CPU few rows keep a chunk in the cache. On a GPU many rows let the gradient of a weight be written in few
// passes.
std::int64_t max_chunk_rows(const at::Tensor& hidden) { return hidden.is_cpu() ? 1024 : 8192; }
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

// Cuts [0, size) into ceil(size / max_size) pieces of about equal length, whose borders are multiples of `unit`. So a
// piece can exceed max_size, by less than a unit.
std::vector<Range> cut(std::int64_t size, std::int64_t max_size, std::int64_t unit) {
  const std::int64_t num_pieces = divide_up(size, max_size);
  const auto border = [&](std::int64_t piece) {
    const std::int64_t even = size * piece / num_pieces;
    return piece == num_pieces ? size : std::min(even / unit * unit, size);
  };
  std::vector<Range> pieces;
  for (std::int64_t piece = 0; piece < num_pieces; ++piece) {
    pieces.push_back({.begin = border(piece), .size = border(piece + 1) - border(piece)});
  }
  return pieces;
}

// One piece of one weight split.
struct Block {
  std::size_t split = 0;
  Range in_split;
  Range in_vocabulary;
};

// The logits of a call, computed for one chunk of rows and one block of the vocabulary at a time, in one buffer.
class ChunkedLogits {
 public:
  explicit ChunkedLogits(const LinearCrossEntropyInput& input)
      : input_(input), wide_(at::toOpMathType(input.hidden().scalar_type())) {
    for (const LogitFactors& product : input.products) hidden_.push_back(factor(product.hidden));
    const at::Tensor& hidden = hidden_.front();
    const std::int64_t num_rows = std::max<std::int64_t>(1, hidden.size(0));
    const std::int64_t chunk_rows = std::min({num_rows, max_chunk_rows(hidden), input.chunk_size});
    const std::int64_t block_size = input.chunk_size / chunk_rows;
    // Tensor cores are fast for sizes that are multiples of 8.
    const std::int64_t unit = hidden.is_cpu() ? 1 : 64;
    rows_ = cut(hidden.size(0), chunk_rows, 1);
    std::int64_t first = 0;
    std::int64_t largest = 0;
    for (std::size_t split = 0; split < input.weights().size(); ++split) {
      for (const Range& piece : cut(input.weights()[split].size(0), block_size, unit)) {
        blocks_.push_back({.split = split, .in_split = piece, .in_vocabulary = {first + piece.begin, piece.size}});
        largest = std::max(largest, piece.size);
      }
      first += input.weights()[split].size(0);
    }
    buffer_ = at::empty({chunk_rows * largest}, hidden.options().dtype(wide_));
  }

  const std::vector<Range>& rows() const { return rows_; }
  const std::vector<Block>& blocks() const { return blocks_; }
  at::Tensor hidden(std::size_t product, const Range& rows) const {
    return hidden_[product].narrow(0, rows.begin, rows.size);
  }
  // The rows of each product's weight.
  std::vector<at::Tensor> weights(const Block& block) const {
    std::vector<at::Tensor> result;
    for (const LogitFactors& product : input_.products)
      result.push_back(factor(product.weights[block.split].narrow(0, block.in_split.begin, block.in_split.size)));
    return result;
  }

  // Converts a tensor to the dtype that products take: a GPU multiplies half precision directly and sums in fp32, on a
  // CPU factors are widened first.
  at::Tensor factor(const at::Tensor& tensor) const {
    return tensor.is_cpu() ? tensor.to(wide_) : tensor.to(input_.hidden().scalar_type());
  }
  // out = a b; out has the accumulator's dtype.
  void multiply(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) const {
    if (a.scalar_type() == wide_) {
      at::mm_out(out, a, b);
    } else {
      at::mm_out(out, a, b, wide_);
    }
  }
  // out += a b
  void accumulate(at::Tensor out, const at::Tensor& a, const at::Tensor& b) const {
    if (a.scalar_type() == wide_) {
      out.addmm_(a, b);
    } else {
      at::addmm_out(out, out, a, b, wide_);
    }
  }

  // The logits [rows, columns of the block], valid until the next call.
  at::Tensor compute(const Range& rows, const Block& block, const std::vector<at::Tensor>& block_weights) const {
    const std::int64_t num_columns = block.in_vocabulary.size;
    at::Tensor logits = buffer_.narrow(0, 0, rows.size * num_columns).view({rows.size, num_columns});
    multiply(logits, hidden(0, rows), block_weights.front().t());
    for (std::size_t product = 1; product < block_weights.size(); ++product)
      accumulate(logits, hidden(product, rows), block_weights[product].t());
    if (input_.bias.defined()) logits.add_(input_.bias.narrow(0, block.in_vocabulary.begin, num_columns));
    if (input_.softcap) logits.div_(*input_.softcap).tanh_().mul_(*input_.softcap);
    return logits;
  }

 private:
  const LinearCrossEntropyInput& input_;
  at::ScalarType wide_;
  std::vector<at::Tensor> hidden_;  // of each product
  std::vector<Range> rows_;
  std::vector<Block> blocks_;
  at::Tensor buffer_;
};

// The column of a block that is each row's target.
struct TargetColumns {
  at::Tensor is_here;  // [rows] bool
  at::Tensor column;   // [rows, 1] int64; an arbitrary valid column if the target is not in the block
};
TargetColumns target_columns(const at::Tensor& targets, const Range& vocabulary) {
  const at::Tensor column = targets - vocabulary.begin;
  return {.is_here = column.ge(0).logical_and_(column.lt(vocabulary.size)),
          .column = column.clamp(0, vocabulary.size - 1).unsqueeze(1)};
}

// [T]: the logit of the rank that has the target, of [W, T] with NaN on the others; NaN if none has it.
at::Tensor target_of(const at::Tensor& logits) {
  return at::nansum(logits, 0).masked_fill(logits.isnan().all(0), std::numeric_limits<double>::quiet_NaN());
}

at::Tensor logsumexp_rows(const at::Tensor& logits) {
  return has_cpu_loops(logits) ? logsumexp_rows_cpu(logits) : at::logsumexp(logits, 1);
}

void scaled_softmax_rows(const at::Tensor& logits, const at::Tensor& lse, const at::Tensor& factor) {
  if (has_cpu_loops(logits)) return scaled_softmax_rows_cpu(logits, lse, factor);
  logits.sub_(lse.unsqueeze(1)).exp_().mul_(factor.unsqueeze(1));
}

// d(sum over rows of grad_loss * loss + grad_lse * lse) / d logits = softmax * by_softmax - onehot(target) * by_target
struct LogitGradient {
  at::Tensor lse;         // [T], infinite for ignored rows, so that their softmax is zero
  at::Tensor by_softmax;  // [T]
  at::Tensor by_target;   // [T]
  at::Tensor threshold;   // [T]: the filter's, infinite for rows without a gradient; undefined without a filter
};
LogitGradient logit_gradient(const LinearCrossEntropyInput& input, const at::Tensor& lse, const at::Tensor& grad_loss,
                             const at::Tensor& grad_lse) {
  const at::Tensor is_ignored = input.targets.eq(kIgnored);
  const at::Tensor by_target = grad_loss.defined() ? grad_loss.masked_fill(is_ignored, 0) : at::zeros_like(lse);
  at::Tensor by_softmax = by_target * (1 + 2 * input.z_loss_weight * lse);
  if (grad_lse.defined()) by_softmax = by_softmax + grad_lse.masked_fill(is_ignored, 0);
  at::Tensor threshold;
  if (input.filter.eps > 0) {
    const at::Tensor scale = at::maximum(by_softmax.abs(), by_target.abs());
    threshold = (scale * input.filter.eps).masked_fill_(scale.eq(0), kInfinity);
  }
  return {.lse = lse.masked_fill(is_ignored, kInfinity),
          .by_softmax = by_softmax,
          .by_target = by_target,
          .threshold = threshold};
}

// What the products of a chunk take: the gradient of its logits, for all columns of the block or for some.
struct Factor {
  at::Tensor grad_logits;  // [rows, columns]
  at::Tensor columns;      // their indices in the block; undefined: all of them
};
// Without the columns that are not kept. Devices other than the CPU multiply by zeros, because the host would have to
// wait for the number of columns.
Factor filtered(const at::Tensor& grad_logits, const at::Tensor& is_kept) {
  if (!is_kept.is_cpu()) return {.grad_logits = grad_logits.masked_fill(is_kept.logical_not(), 0), .columns = {}};
  const at::Tensor columns = is_kept.nonzero().squeeze(1);
  return {.grad_logits = grad_logits.index_select(1, columns), .columns = columns};
}

// Sums the gradients of the factors of a product, one block of the vocabulary after another.
class FactorSums {
 public:
  FactorSums(const LogitFactors& factors, const WantedOfFactors& wanted, const at::TensorOptions& wide)
      : factors_(factors),
        wanted_(wanted),
        wide_(wide),
        grad_hidden_(wanted.hidden ? at::zeros(factors.hidden.sizes(), wide) : at::Tensor()),
        result_{.hidden = {}, .weights = empty_weight_gradients(factors, wanted, factors.hidden.scalar_type())} {}

  bool needs(const Block& block) const { return wanted_.hidden || wanted_.weights[block.split]; }
  void begin(const Block& block) {
    grad_weight_ =
        wanted_.weights[block.split] ? at::zeros({block.in_split.size, factors_.hidden.size(1)}, wide_) : at::Tensor();
  }
  // hidden, weight: the factors of the chunk.
  void add(const ChunkedLogits& logits, const Range& rows, const at::Tensor& hidden, const at::Tensor& weight,
           const Factor& of_hidden, const Factor& of_weights) const {
    if (grad_hidden_.defined()) {
      logits.accumulate(grad_hidden_.narrow(0, rows.begin, rows.size), of_hidden.grad_logits,
                        of_hidden.columns.defined() ? weight.index_select(0, of_hidden.columns) : weight);
    }
    if (!grad_weight_.defined()) return;
    const at::Tensor by_column = of_weights.grad_logits.t();
    if (of_weights.columns.defined()) {
      grad_weight_.index_add_(0, of_weights.columns, at::mm(by_column, hidden));
    } else {
      logits.accumulate(grad_weight_, by_column, hidden);
    }
  }
  void finish(const Block& block) const {
    if (!grad_weight_.defined()) return;
    rows_of_place(weight_place(wanted_, result_, block.split), block.in_split.begin, block.in_split.size)
        .put(grad_weight_);
  }
  LogitFactors result() const {
    const at::Tensor hidden = grad_hidden_.defined() ? grad_hidden_.to(factors_.hidden.scalar_type()) : at::Tensor();
    return {.hidden = hidden, .weights = result_.weights};
  }

 private:
  const LogitFactors& factors_;
  const WantedOfFactors& wanted_;
  at::TensorOptions wide_;
  at::Tensor grad_hidden_;
  at::Tensor grad_weight_;  // of a block
  LogitFactors result_;
};

}  // namespace

std::vector<at::Tensor> empty_weight_gradients(const LogitFactors& factors, const WantedOfFactors& wanted,
                                               at::ScalarType dtype) {
  std::vector<at::Tensor> result(factors.weights.size());
  for (std::size_t split = 0; split < result.size(); ++split) {
    const bool has_place = split < wanted.places.size() && wanted.places[split];
    const at::Tensor& weight = factors.weights[split];
    if (wanted.weights[split] && !has_place) result[split] = at::empty(weight.sizes(), weight.options().dtype(dtype));
  }
  return result;
}

GradientPlace weight_place(const WantedOfFactors& wanted, const LogitFactors& result, std::size_t split) {
  if (split < wanted.places.size() && wanted.places[split]) return *wanted.places[split];
  return {.tensor = result.weights[split], .has_values = false};
}

GradientPlace rows_of_place(const GradientPlace& place, std::int64_t begin, std::int64_t size) {
  return {.tensor = place.tensor.narrow(0, begin, size), .has_values = place.has_values};
}

LinearCrossEntropyForward linear_cross_entropy_forward_aten(const LinearCrossEntropyInput& input) {
  const ChunkedLogits logits(input);
  const at::Tensor& hidden = input.hidden();
  const at::TensorOptions options = hidden.options().dtype(at::toOpMathType(hidden.scalar_type()));
  const at::Tensor lse = at::full({hidden.size(0)}, -kInfinity, options);
  if (lse.is_meta()) return {.loss = at::empty_like(lse), .lse = lse};
  const at::Tensor target_logit = at::full_like(lse, std::numeric_limits<double>::quiet_NaN());
  for (const Block& block : logits.blocks()) {
    const std::vector<at::Tensor> weights = logits.weights(block);
    for (const Range& rows : logits.rows()) {
      const at::Tensor z = logits.compute(rows, block, weights);
      const TargetColumns targets = target_columns(input.targets.narrow(0, rows.begin, rows.size), block.in_vocabulary);
      at::Tensor row_target = target_logit.narrow(0, rows.begin, rows.size);
      row_target.copy_(at::where(targets.is_here, z.gather(1, targets.column).squeeze(1), row_target));
      at::Tensor row_lse = lse.narrow(0, rows.begin, rows.size);
      at::logaddexp_out(row_lse, row_lse, logsumexp_rows(z));
    }
  }
  const at::Tensor of_ranks = input.of_ranks(at::stack({lse, target_logit}));  // [W, 2, T]
  const at::Tensor whole_lse = at::logsumexp(of_ranks.select(1, 0), 0);
  const at::Tensor is_ignored = input.targets.eq(kIgnored);
  const at::Tensor loss = whole_lse - target_of(of_ranks.select(1, 1)) + input.z_loss_weight * whole_lse.square();
  return {.loss = loss.masked_fill(is_ignored, 0), .lse = whole_lse.masked_fill(is_ignored, 0)};
}

LinearCrossEntropyBackward linear_cross_entropy_backward_aten(const LinearCrossEntropyInput& input,
                                                              const at::Tensor& lse, const at::Tensor& grad_loss,
                                                              const at::Tensor& grad_lse,
                                                              const LinearCrossEntropyWanted& wanted) {
  const ChunkedLogits logits(input);
  const LogitGradient gradient = logit_gradient(input, lse, grad_loss, grad_lse);
  const at::Tensor grad_bias = wanted.bias ? at::zeros(input.bias.sizes(), lse.options()) : at::Tensor();
  std::vector<FactorSums> gradients;
  for (std::size_t product = 0; product < input.products.size(); ++product)
    gradients.emplace_back(input.products[product], wanted.products[product], lse.options());
  for (const Block& block : lse.is_meta() ? std::vector<Block>() : logits.blocks()) {
    const auto needs = [&](const FactorSums& of_product) { return of_product.needs(block); };
    if (!wanted.bias && std::ranges::none_of(gradients, needs)) continue;
    const std::vector<at::Tensor> weights = logits.weights(block);
    for (FactorSums& of_product : gradients) of_product.begin(block);
    for (const Range& rows : logits.rows()) {
      const at::Tensor z = logits.compute(rows, block, weights);
      const at::Tensor slope = input.softcap ? 1 - (z / *input.softcap).square_() : at::Tensor();
      const auto of_rows = [&](const at::Tensor& tensor) { return tensor.narrow(0, rows.begin, rows.size); };
      scaled_softmax_rows(z, of_rows(gradient.lse), of_rows(gradient.by_softmax));
      const TargetColumns targets = target_columns(of_rows(input.targets), block.in_vocabulary);
      z.scatter_add_(1, targets.column, (of_rows(gradient.by_target) * targets.is_here).neg().unsqueeze(1));
      if (slope.defined()) z.mul_(slope);
      const Factor all{.grad_logits = logits.factor(z), .columns = {}};
      Factor kept;
      if (input.filter.eps > 0) kept = filtered(all.grad_logits, kept_columns_aten(z, of_rows(gradient.threshold)));
      for (std::size_t product = 0; product < gradients.size(); ++product) {
        gradients[product].add(logits, rows, logits.hidden(product, rows), weights[product],
                               input.filter.of_hidden ? kept : all, input.filter.of_weights ? kept : all);
      }
      if (wanted.bias) grad_bias.narrow(0, block.in_vocabulary.begin, block.in_vocabulary.size).add_(z.sum(0));
    }
    for (const FactorSums& of_product : gradients) of_product.finish(block);
  }
  LinearCrossEntropyBackward result;
  for (const FactorSums& of_product : gradients) result.products.push_back(of_product.result());
  if (wanted.bias) result.bias = grad_bias.to(input.bias.scalar_type());
  return result;
}

at::Tensor kept_columns_aten(const at::Tensor& grad_logits, const at::Tensor& threshold) {
  return grad_logits.abs().sub_(threshold.unsqueeze(1)).amax(0).lt(0).logical_not_();
}

}  // namespace d9d::kernels::detail
