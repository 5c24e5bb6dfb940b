// Sharded units whose backward is split as in a pipeline: gradients are those of one rank, nothing is gathered for
// products that waited, and reductions come after them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/blocks/normalization/rms_norm.h"
#include "d9d/core/autograd/deferred_gradients.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

#include "tests/parallelism/one_rank.h"
#include "tests/support/matrix_products.h"

namespace d9d::test::fsdp_split_backward_test {
namespace {

constexpr std::int64_t kTokens = 7, kWidth = 5, kInner = 9;  // products of weights' gradients are sums of kTokens terms
constexpr std::int64_t kNumBlocks = 3;

class Block : public Module {
 public:
  at::Tensor forward(const at::Tensor& x) const { return x + down(at::tanh(up(norm(x)))); }

  const ModulePtr<RMSNorm> norm = register_module<RMSNorm>("norm", RMSNormConfig{.hidden_size = kWidth});
  const ModulePtr<Linear> up = register_module<Linear>("up", LinearConfig{kWidth, kInner});
  const ModulePtr<Linear> down = register_module<Linear>("down", LinearConfig{kInner, kWidth});
};

class Blocks : public Module {
 public:
  Blocks() {
    for (std::int64_t i = 0; i < kNumBlocks; ++i) blocks.push_back(register_module<Block>("block" + std::to_string(i)));
  }
  std::vector<ModulePtr<Block>> blocks;
};

struct Pass {
  char what;  // F, B, I or W
  std::int64_t microbatch;
};
// "F0 F1 I0 W0 B1"
std::vector<Pass> passes_of(const std::string& program) {
  std::vector<Pass> passes;
  for (std::size_t i = 0; i < program.size(); i += 3) passes.push_back({program[i], program[i + 1] - '0'});
  return passes;
}

struct Case {
  FsdpConfig fsdp = {};
  bool is_checkpointed = false;
  bool freezes = false;         // a linear of the first block, and all of the second
  bool leaves_out_one = false;  // of rank 1: the last block, in the loss of microbatch 1
  std::int64_t num_replicas = 1;
};

// The loss of a microbatch of a rank.
at::Tensor loss_of(const Blocks& model, const Case& one, std::int64_t rank, std::int64_t microbatch) {
  at::Tensor x = values({kTokens, kWidth}, static_cast<double>(10 * rank + microbatch)).set_requires_grad(true);
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    x = model.blocks[i](x);
    const bool is_left_out = one.leaves_out_one && rank == 1 && microbatch == 1 && i + 1 == model.blocks.size();
    if (!is_left_out) sum = sum + x.square().mean();
  }
  return sum;
}

ModulePtr<Blocks> make_blocks(const Case& one) {
  auto model = make_module<Blocks>();
  model->to(at::kDouble);
  for (const auto& block : model->blocks) block->set_activation_checkpointing(one.is_checkpointed);
  if (one.freezes) {
    model->blocks[0]->up->set_requires_grad(false);
    model->blocks[1]->set_requires_grad(false);
  }
  return model;
}

struct Counts {
  std::int64_t num_gathers = 0, num_reductions = 0, num_products = 0;
};

// One rank's step; fails the test where a part of the backward does what it should not.
Counts run_step(const Blocks& model, FsdpRuntime& runtime, const Case& one, const std::vector<Pass>& passes,
                std::int64_t rank) {
  std::vector<at::Tensor> leaves;
  for (const auto& [name, parameter] : model.named_parameters()) leaves.push_back(parameter->local());
  DeferredGradients deferred(leaves);
  std::map<std::int64_t, at::Tensor> losses;
  std::map<std::int64_t, WeightGradients> waiting;
  const Counts before{.num_gathers = runtime.num_gathers(), .num_reductions = runtime.num_reductions()};
  const MatrixProducts products;
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const auto [what, microbatch] = passes[i];
    const bool is_last = i + 1 == passes.size();
    if (what == 'F') {
      const StagePass forward{.kind = StagePassKind::kForward, .microbatch = microbatch};
      runtime.begin_pass(forward);
      losses[microbatch] = loss_of(model, one, rank, microbatch);
      runtime.end_pass();
      continue;
    }
    const std::int64_t num_gathers = runtime.num_gathers(), num_reductions = runtime.num_reductions();
    const std::int64_t num_of_weights = products.count(kTokens), num_products = products.count();
    const StagePass pass{.kind = StagePassKind::kBackward,
                         .microbatch = microbatch,
                         .part = what == 'B'   ? BackwardPart::kWhole
                                 : what == 'I' ? BackwardPart::kInput
                                               : BackwardPart::kWeight,
                         .is_last = is_last};
    runtime.begin_pass(pass);
    if (what == 'W') {
      waiting.extract(microbatch).mapped().run();
      const std::int64_t num_beside = runtime.num_reductions() - num_reductions;  // products
      const bool reduces = is_last || !one.fsdp.reduce_on_last_microbatch.value_or(false);
      EXPECT_TRUE(one.leaves_out_one || one.freezes || num_beside == (reduces ? kNumBlocks : 0)) << num_beside;
    } else {
      const at::Tensor loss = losses.extract(microbatch).mapped();
      const auto backward = [&] { loss.backward(); };
      what == 'I' ? void(waiting.emplace(microbatch, deferred.keep(backward))) : backward();
    }
    runtime.end_pass();
    if (what == 'I') {
      EXPECT_EQ(runtime.num_reductions(), num_reductions);
      EXPECT_EQ(products.count(kTokens), num_of_weights);
    }
    if (what == 'W') {
      EXPECT_EQ(runtime.num_gathers(), num_gathers);
      EXPECT_EQ(products.count() - num_products, products.count(kTokens) - num_of_weights);
    }
  }
  runtime.finish();
  return {.num_gathers = runtime.num_gathers() - before.num_gathers,
          .num_reductions = runtime.num_reductions() - before.num_reductions,
          .num_products = products.count(kTokens)};
}

void expect_gradients_of_one_rank(const Blocks& actual, const Blocks& expected) {
  const auto ours = actual.named_parameters(), theirs = expected.named_parameters();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const Parameter& parameter = *ours[i].second;
    if (!parameter.requires_grad()) continue;
    const at::Tensor whole = theirs[i].second->local().grad();
    const FlatRange range = flat_range(whole.numel(), parameter.mesh(), parameter.placements());
    expect_close(ours[i].first, parameter.stored().grad().flatten(),
                 whole.reshape({-1}).narrow(0, range.begin, range.numel()), tolerance("fp64"),
                 largest_magnitude(whole));
  }
}

// Runs the program in two steps on sharded ranks; returns the counts of the second. Fails where gradients differ from
// those of one rank.
Counts counts_of(const Case& one, const std::string& program) {
  const std::vector<Pass> passes = passes_of(program);
  const std::int64_t num_ranks = 2 * one.num_replicas;
  const auto expected = make_blocks(one);
  (void)initialized(expected);
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    for (const auto& [what, microbatch] : passes) {
      if (what == 'F') loss_of(*expected, one, rank, microbatch).backward();
    }
  }
  Counts counts;
  run_ranks(RankBackend::kThreads, num_ranks, [&](World& world) {
    const auto model = make_blocks(one);
    const auto runtime = std::make_shared<FsdpRuntime>(one.fsdp);
    const DeviceMesh mesh("dense", {{"replicas", one.num_replicas}, {"shards", 2}}, borrowed(world));
    const std::vector<FsdpAxes> axes = {{.mesh = mesh, .shard_axis = "shards", .replicate_axes = {"replicas"}}};
    for (const auto& block : model->blocks) {
      parallelize_fsdp(runtime, {.name = "block", .modules = {block.shared()}, .axes = axes});
    }
    (void)initialized(model);
    for (int step = 0; step < 2; ++step) {
      const Counts own = run_step(*model, *runtime, one, passes, world.rank());
      EXPECT_LE(runtime->disagreement().item<double>(), 0.25);
      expect_gradients_of_one_rank(*model, *expected);
      runtime->clear();
      if (world.rank() == 0) counts = own;
    }
  });
  return counts;
}

// The same program without splits.
std::string whole(std::string program) {
  for (std::size_t i = 0; i < program.size(); i += 3) {
    if (program[i] == 'I') program[i] = 'B';
    if (program[i] == 'W') program.erase(i, 3), i -= 3;
  }
  return program;
}

const std::vector<std::string>& programs() {
  static const std::vector<std::string> all = {"F0 I0 W0 F1 I1 W1 ", "F0 F1 I0 F2 W0 I1 I2 W2 W1 ",
                                               "F0 F1 F2 I2 I1 I0 W2 W1 W0 ", "F0 F1 B0 I1 F2 W1 B2 ",
                                               "F0 F1 F2 I0 B1 I2 W0 W2 "};
  return all;
}

std::string text_of(const FsdpConfig& config) {
  return cat(enum_name(*config.reshard_after_forward), ", reduce on last ", *config.reduce_on_last_microbatch);
}

std::vector<FsdpConfig> configs() {
  std::vector<FsdpConfig> all;
  for (const ReshardAfterForward reshard :
       {ReshardAfterForward::kExceptLast, ReshardAfterForward::kAlways, ReshardAfterForward::kNever}) {
    for (const bool on_last : {false, true}) {
      all.push_back({.reshard_after_forward = reshard, .reduce_on_last_microbatch = on_last});
    }
  }
  return all;
}

std::int64_t count_of(const std::string& program, const char* which) {
  return std::ranges::count_if(passes_of(program), [&](const Pass& pass) {
    return std::string_view(which).find(pass.what) != std::string_view::npos;
  });
}

TEST(FsdpSplitBackward, Gathers_as_a_whole_backward_does_and_reduces_after_products_that_waited) {
  for (const std::string& program : programs()) {
    for (const FsdpConfig& config : configs()) {
      for (const bool is_checkpointed : {false, true}) {
        SCOPED_TRACE(program + text_of(config) + (is_checkpointed ? " checkpointed" : ""));
        const Case one{.fsdp = config, .is_checkpointed = is_checkpointed};
        const Counts split = counts_of(one, program), expected = counts_of(one, whole(program));
        EXPECT_EQ(split.num_gathers, expected.num_gathers);
        EXPECT_EQ(split.num_products, expected.num_products);
        EXPECT_EQ(split.num_products, 2 * kNumBlocks * count_of(program, "BW"));
        EXPECT_EQ(split.num_reductions, kNumBlocks * (*config.reduce_on_last_microbatch ? 1 : count_of(program, "BW")));
      }
    }
  }
}

TEST(FsdpSplitBackward, Agrees_over_ranks_whose_losses_leave_out_units) {
  for (const std::string& program : programs()) {
    for (const FsdpConfig& config : configs()) {
      SCOPED_TRACE(program + text_of(config));
      (void)counts_of({.fsdp = config, .leaves_out_one = true}, program);
    }
  }
}

TEST(FsdpSplitBackward, Takes_frozen_units_and_replicas) {
  for (const FsdpConfig& config : configs()) {
    SCOPED_TRACE(text_of(config));
    (void)counts_of({.fsdp = config, .is_checkpointed = true, .freezes = true, .num_replicas = 2}, programs()[1]);
  }
}

TEST(FsdpSplitBackward, Begins_anew_after_a_step_that_ended_between_the_halves) {
  run_ranks(RankBackend::kThreads, 2, [&](World& world) {
    const Case one{.fsdp = {.reduce_on_last_microbatch = true}};
    const auto model = make_blocks(one), expected = make_blocks(one);
    const auto runtime = std::make_shared<FsdpRuntime>(one.fsdp);
    const std::vector<FsdpAxes> axes = {{.mesh = mesh_of(world, "shards"), .shard_axis = "shards"}};
    for (const auto& block : model->blocks) {
      parallelize_fsdp(runtime, {.name = "block", .modules = {block.shared()}, .axes = axes});
    }
    (void)initialized(model);
    (void)initialized(expected);
    std::vector<at::Tensor> leaves;
    for (const auto& [name, parameter] : model->named_parameters()) leaves.push_back(parameter->local());
    {
      DeferredGradients deferred(leaves);
      const StagePass forward{.kind = StagePassKind::kForward};
      const StagePass backward{.kind = StagePassKind::kBackward, .part = BackwardPart::kInput};
      runtime->begin_pass(forward);
      const at::Tensor loss = loss_of(*model, one, world.rank(), 0);
      runtime->end_pass();
      runtime->begin_pass(backward);
      const WeightGradients waiting = deferred.keep([&] { loss.backward(); });
      runtime->end_pass();
    }
    runtime->abandon();
    (void)run_step(*model, *runtime, one, passes_of(programs()[0]), world.rank());
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      for (std::int64_t i = 0; i < 2; ++i) loss_of(*expected, one, rank, i).backward();
    }
    expect_gradients_of_one_rank(*model, *expected);
  });
}

}  // namespace
}  // namespace d9d::test::fsdp_split_backward_test
