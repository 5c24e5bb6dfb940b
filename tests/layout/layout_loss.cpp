#include "tests/layout/layout_loss.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "d9d/base/ignore_index.h"
#include "d9d/base/rounding.h"
#include "d9d/loop/language_model/sequence_log_probs.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"

namespace d9d::test {
namespace {

// All [S].
struct Sequence {
  at::Tensor ids;
  at::Tensor labels;
  at::Tensor positions;
  at::Tensor mask;                           // of pooled positions, int64
  at::Tensor is_real;                        // whether a position is data
  std::vector<std::int64_t> documents = {};  // their lengths, S together
};

std::int64_t length_of(const LayoutJob& job, std::int64_t number) {
  return job.has_short_sequences ? (5 * number + 3) % (job.num_positions + 1) : job.num_positions;
}

// Where the first document of a packed sequence ends.
std::int64_t end_of_first(const LayoutJob& job, std::int64_t number) { return 1 + number % (job.num_positions - 1); }

at::Tensor pooling_mask(Pooling pooling, std::int64_t length) {
  const at::Tensor position = at::arange(length, at::kLong);
  if (pooling == Pooling::kSome) return position.remainder(3).eq(1).to(at::kLong);
  if (pooling == Pooling::kLast) return position.eq(length - 1).to(at::kLong);
  return at::ones_like(position);
}

// Without padding.
Sequence make_sequence(const LayoutJob& job, std::int64_t number, std::int64_t which) {
  const std::int64_t length = length_of(job, number);
  const at::Tensor position = at::arange(job.num_positions + 1, at::kLong) + number * (job.num_positions + 1);
  const at::Tensor tokens = (position * position * 31 + position * 7 + number) % kLayoutVocabulary;
  at::Tensor labels = tokens.narrow(0, 1, job.num_positions).clone();
  std::int64_t num_ignored = 0;                                  // the first ones
  if (job.labels == Labels::kUnequal) num_ignored = number % 7;  // in some sequences the whole first half
  if (job.labels == Labels::kSecondHalf) num_ignored = job.num_positions / 2;
  if (job.labels == Labels::kSomeSequences && number % 3 == 1) num_ignored = job.num_positions;
  labels.narrow(0, 0, num_ignored).fill_(kIgnoreIndex);
  const std::int64_t first = job.packs ? std::min(end_of_first(job, number), length) : length;
  return {.ids = (tokens.narrow(0, 0, length) + 5 * which) % kLayoutVocabulary,
          .labels = labels.narrow(0, 0, length),
          .positions = at::cat({at::arange(first), at::arange(length - first)}),
          .mask = pooling_mask(job.pooling, length),
          .is_real = at::ones({length}, at::kBool),
          .documents = {first, length - first}};
}

void pad(Sequence& sequence, std::int64_t length) {
  const std::int64_t num_padding = length - sequence.ids.size(0);
  const auto padded = [&](at::Tensor& row, std::int64_t value) {
    row = at::constant_pad_nd(row, {0, num_padding}, value);
  };
  padded(sequence.ids, 0);
  padded(sequence.labels, kIgnoreIndex);
  padded(sequence.positions, 0);
  padded(sequence.mask, 0);
  padded(sequence.is_real, 0);
  sequence.documents.push_back(num_padding);
}

// This rank's part of the inputs of one forward.
struct Inputs {
  at::Tensor ids;     // [B, S]
  at::Tensor labels;  // [B, S]
  std::optional<at::Tensor> mask;
  at::Tensor positions;
  std::optional<PackedSequences> packed = std::nullopt;
  std::optional<at::Tensor> real_positions = std::nullopt;
  at::Tensor snapshot_mask = {};  // [B, S]
  // Of all positions, whose outputs each rank has, and the part of their loss that it takes.
  at::Tensor whole_ids = {}, whole_positions = {};
  double share = 1.0;
};

PackedSequences boundaries_of(const std::vector<Sequence>& sequences) {
  std::vector<std::int32_t> ends = {0};
  std::int64_t max_length = 0;  // padding too, which is longer than num_positions after no data
  for (const Sequence& sequence : sequences) {
    for (const std::int64_t length : sequence.documents) {
      ends.push_back(ends.back() + static_cast<std::int32_t>(length));
      max_length = std::max(max_length, length);
    }
  }
  return {.cu_seqlens = at::tensor(ends, at::kInt), .max_length = max_length};
}

// What the next rank has.
at::Tensor part_of_next(const at::Tensor& x, const PositionCut& cut) {
  std::vector<at::Tensor> parts;
  for (const FlatRange& range : cut.ranges(x.size(1), (cut.ranks().index() + 1) % cut.num_ranks())) {
    parts.push_back(x.narrow(1, range.begin, range.numel()));
  }
  return at::cat(parts, 1);
}

Inputs make_inputs(const LayoutJob& job, std::int64_t number, std::int64_t which, const Rows& rows) {
  const bool is_one_row = job.has_short_sequences && !rows.are_padded;
  const std::int64_t length = round_up(job.num_positions, rows.position_divisor);
  std::vector<Sequence> sequences;
  std::int64_t num_real = 0;
  for (std::int64_t i = 0; i < job.num_sequences; ++i) {
    sequences.push_back(make_sequence(job, number * job.num_sequences + i, which));
    num_real += sequences.back().ids.size(0);
    if (!is_one_row) pad(sequences.back(), length);
  }
  std::int64_t num_padding = 0;  // of one row: none is of nothing, and ranks that share it have equal parts
  if (is_one_row) {
    num_padding = round_up(std::max<std::int64_t>(1, num_real), rows.position_divisor) - num_real;
    if (num_padding > 0) pad(sequences.back(), sequences.back().ids.size(0) + num_padding);
  }
  const auto whole = [&](at::Tensor Sequence::*member) {
    std::vector<at::Tensor> all;
    for (const Sequence& sequence : sequences) all.push_back(sequence.*member);
    return is_one_row ? at::cat(all).unsqueeze(0) : at::stack(all);
  };
  const auto here = [&](at::Tensor Sequence::*member, Mutation fault = Mutation::kNone) {
    const bool is_of_next = fault != Mutation::kNone && fault == rows.mutation;
    return is_of_next ? part_of_next(whole(member), rows.positions)
                      : context_parallel_shard(whole(member), /*dim=*/1, rows.positions);
  };
  Inputs inputs{.ids = here(&Sequence::ids),
                .labels = here(&Sequence::labels, Mutation::kLabelsOfNext),
                .mask = std::nullopt,
                .positions = here(&Sequence::positions, Mutation::kPositionsOfNext),
                .snapshot_mask = here(&Sequence::mask),
                .whole_ids = whole(&Sequence::ids),
                .whole_positions = whole(&Sequence::positions),
                .share = 1.0 / static_cast<double>(rows.positions.num_ranks())};
  const bool has_padding = num_padding > 0 || (!is_one_row && num_real < job.num_sequences * length);
  if (job.pooling != Pooling::kAll || job.has_short_sequences || has_padding) inputs.mask = whole(&Sequence::mask);
  if (job.packs || is_one_row) inputs.packed = boundaries_of(sequences);
  if (has_padding && rows.mutation != Mutation::kPaddingCounted) {
    inputs.real_positions = here(&Sequence::is_real).reshape({-1}).nonzero().squeeze(1);
  }
  return inputs;
}

// The values [B, S, ...] at pooled positions, [n, ...].
at::Tensor pooled(const at::Tensor& values, const Inputs& inputs) {
  const at::Tensor rows = values.flatten(0, 1);
  return inputs.mask ? rows.index_select(0, inputs.mask->reshape({-1}).nonzero().squeeze(1)) : rows;
}

struct Sum {
  at::Tensor of_losses;
  at::Tensor of_counts;
};

Sum loss_of(const LanguageModellingOutput& output, const Inputs& inputs) {
  return {.of_losses = output.cross_entropy.sum(), .of_counts = inputs.labels.ne(kIgnoreIndex).sum()};
}

Sum loss_of(const ClassificationOutput& output, const Inputs& inputs) {
  const at::Tensor classes = pooled((inputs.whole_ids * 5 + inputs.whole_positions) % kLayoutClasses, inputs);
  const at::Tensor scores = output.scores.reshape({-1, kLayoutClasses}).log_softmax(-1);
  return {.of_losses = -scores.gather(1, classes.unsqueeze(1)).sum() * inputs.share,
          .of_counts = at::scalar_tensor(static_cast<double>(classes.size(0)) * inputs.share, at::kDouble)};
}

Sum loss_of(const EmbeddingOutput& output, const Inputs& inputs) {
  const at::Tensor axes = at::arange(kLayoutEmbedding, at::kDouble);
  const at::Tensor targets = at::sin(pooled(inputs.whole_ids, inputs).to(at::kDouble).unsqueeze(1) + axes);
  const at::Tensor embeddings = output.embeddings.reshape({-1, kLayoutEmbedding});
  return {.of_losses = (embeddings - targets.to(embeddings.scalar_type())).square().sum() * inputs.share,
          .of_counts = at::scalar_tensor(static_cast<double>(targets.size(0)) * inputs.share, at::kDouble)};
}

double factor_of(Weights weights, std::int64_t number) {
  if (weights == Weights::kScaled) return 1.0 + static_cast<double>(number % 3);
  return weights == Weights::kSomeZero && number % 2 == 1 ? 0.0 : 1.0;
}

StageInputs forward_inputs(const LayoutJob& job, const Inputs& inputs) {
  SequenceHeadsShared shared{.sequence = {.position_ids = inputs.positions,
                                          .hidden_states_agg_mask = inputs.snapshot_mask,
                                          .packed = inputs.packed,
                                          .real_positions = inputs.real_positions},
                             .heads = {}};
  for (const Head head : job.heads) {
    AnyHeadShared& own = shared.heads[name_of(head)];
    if (head == Head::kCausalLM) own = LanguageModellingShared{inputs.labels};
    if (head != Head::kCausalLM) own = PoolingShared{inputs.mask};
  }
  return {.input = {inputs.ids}, .shared = std::move(shared)};
}

// Of whole sequences, on each rank that has a part of them.
Sum loss_of_snapshots(const at::Tensor& snapshots, const Inputs& inputs) {
  const at::Tensor targets = at::sin(at::arange(snapshots.numel(), at::kDouble)).view(snapshots.sizes());
  return {.of_losses = (snapshots - targets.to(snapshots.scalar_type())).square().sum() * inputs.share,
          .of_counts = at::scalar_tensor(static_cast<double>(snapshots.size(1)) * inputs.share, at::kDouble)};
}

// One forward, and the sums over the positions that it predicts.
struct Forward {
  Forward(DecoderHeadsOutput of_model, const Inputs& inputs, const std::vector<Head>& used)
      : output(std::move(of_model)) {
    for (const Head head : used) {
      add(std::visit([&](const auto& of_head) { return loss_of(of_head, inputs); }, output.heads.at(name_of(head))));
    }
    if (output.hidden_states_snapshot) add(loss_of_snapshots(*output.hidden_states_snapshot, inputs));
  }
  void add(const Sum& sum) {
    losses = losses + sum.of_losses.to(at::kDouble);
    counts = counts + sum.of_counts.to(at::kDouble);
  }
  DecoderHeadsOutput output;
  at::Tensor losses = at::zeros({}, at::kDouble);
  at::Tensor counts = at::zeros({}, at::kDouble);
};

Forward forward_of(const ModulePtr<LayoutModel>& model, const LayoutJob& job, const Inputs& inputs,
                   const std::vector<Head>& used) {
  const StageInputs built = forward_inputs(job, inputs);
  return {std::get<DecoderHeadsOutput>(model(SequenceStageInput(built.input), built.shared)), inputs, used};
}

at::Tensor cross_entropy(const DecoderHeadsOutput& output) {
  return std::get<LanguageModellingOutput>(output.heads.at(name_of(Head::kCausalLM))).cross_entropy;
}

std::vector<Head> used_heads(const LayoutJob& job, std::int64_t step, std::int64_t number) {
  std::vector<Head> heads = job.heads;
  if (heads.size() == 1) return heads;
  if (job.leaves_out == (step % 2 == 0 ? LeftOut::kEvenSteps : LeftOut::kOddSteps)) heads.pop_back();
  if (job.leaves_out == LeftOut::kMicrobatches) heads.erase(heads.begin() + number % std::ssize(heads));
  return heads;
}

LayoutLoss weighted(const at::Tensor& losses, const at::Tensor& counts, const std::optional<at::Tensor>& auxiliary_loss,
                    double factor) {
  // A share of one row is less than 1.
  LayoutLoss result{.loss = losses / at::where(counts.gt(0), counts, 1), .weight = counts * factor};
  if (auxiliary_loss) result.loss = result.loss + *auxiliary_loss;
  return result;
}

// The mean over pairs. Their number is that of whole sequences, of which this rank may have no label.
LayoutLoss preference_loss(const DecoderHeadsOutput& output, const LayoutJob& job, std::int64_t number,
                           const Rows& rows) {
  const at::Tensor of_sequences = sequence_log_probs(cross_entropy(output), rows.positions.ranks()).to(at::kDouble);
  const at::Tensor references = at::sin(at::arange(job.num_sequences, at::kDouble) + static_cast<double>(number));
  const at::Tensor ratios = (of_sequences - references).view({-1, 2});
  const Inputs whole = make_inputs(job, number, 0, {});
  const at::Tensor is_pair = whole.labels.ne(kIgnoreIndex).any(1).view({-1, 2}).all(1);
  const at::Tensor losses = -at::log_sigmoid(ratios.select(1, 0) - ratios.select(1, 1)) * is_pair;
  return weighted(losses.sum(), is_pair.sum().to(at::kDouble), output.auxiliary_loss, factor_of(job.weights, number));
}

}  // namespace

StageInputs stage_inputs(const LayoutJob& job, std::int64_t number, const Rows& rows) {
  return forward_inputs(job, make_inputs(job, number, 0, rows));
}

LayoutLoss stage_loss(const DecoderHeadsOutput& output, const LayoutJob& job, std::int64_t step, std::int64_t number,
                      const Rows& rows) {
  if (job.prefers) return preference_loss(output, job, number, rows);
  const Forward only(output, make_inputs(job, number, 0, rows), used_heads(job, step, number));
  return weighted(only.losses, only.counts, output.auxiliary_loss, factor_of(job.weights, number));
}

LayoutLoss microbatch_loss(const ModulePtr<LayoutModel>& model, const LayoutJob& job, std::int64_t step,
                           std::int64_t number, const Rows& rows) {
  const std::vector<Head> used = used_heads(job, step, number);
  const Forward first = forward_of(model, job, make_inputs(job, number, 0, rows), used);
  if (job.prefers) return preference_loss(first.output, job, number, rows);
  at::Tensor losses = first.losses, counts = first.counts;  // a rank that has a loss has a weight
  std::optional<at::Tensor> auxiliary_loss = first.output.auxiliary_loss;
  if (job.has_pairs) {
    const Inputs inputs = make_inputs(job, number, 1, rows);
    const std::vector<Head> used_by_second = used_heads(job, step, number + 1);
    const Forward second = forward_of(model, job, inputs, used_by_second);
    losses = losses + 0.5 * second.losses;
    counts = counts + second.counts;
    if (used.front() == Head::kCausalLM && used_by_second.front() == Head::kCausalLM) {
      const at::Tensor margins = (cross_entropy(first.output) - cross_entropy(second.output)).to(at::kDouble);
      losses = losses + (at::softplus(margins) * inputs.labels.ne(kIgnoreIndex)).sum();
    }
    if (auxiliary_loss) auxiliary_loss = *auxiliary_loss + *second.output.auxiliary_loss;
  }
  return weighted(losses, counts, auxiliary_loss, factor_of(job.weights, number));
}

}  // namespace d9d::test
