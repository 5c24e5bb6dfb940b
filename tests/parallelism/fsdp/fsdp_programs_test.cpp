// Sharded units in random programs: units are called in any order, several times or not at all, nested, frozen,
// detached, or next to forwards without gradients, and the loss of each rank and microbatch may leave out different
// ones. Gradients must equal those of one rank.
#include <random>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/core/autograd/checkpoint.h"
#include "d9d/parallelism/fsdp/parallelize_fsdp.h"

#include "tests/parallelism/one_rank.h"

namespace d9d::test::fsdp_programs_test {
namespace {

// A layer that contains another layer, sharded as two units.
class Nest : public Module {
 public:
  at::Tensor forward(const at::Tensor& x) const { return at::tanh(own(at::tanh(inner(at::tanh(own(x)))))); }

  const ModulePtr<Linear> own = register_module<Linear>("own", LinearConfig{5, 5});
  const ModulePtr<Linear> inner = register_module<Linear>("inner", LinearConfig{5, 5});
};

class Bag : public Module {
 public:
  static constexpr int kNumLinears = 5;
  Bag() {
    for (int i = 0; i < kNumLinears; ++i) {
      linears.push_back(register_module<Linear>("linear" + std::to_string(i), LinearConfig{5, 5}));
    }
  }
  at::Tensor forward(int which, const at::Tensor& x) const {
    const auto index = static_cast<std::size_t>(which);
    return which == kNumLinears ? nest(x) : at::tanh(linears[index](x));
  }
  at::Tensor chain(at::Tensor x, const std::vector<int>& which) const {
    for (const int each : which) x = forward(each, x);
    return x;
  }

  std::vector<ModulePtr<Linear>> linears;
  const ModulePtr<Nest> nest = register_module<Nest>("nest");
};

// Forward and backward of one microbatch of a rank.
using Program = std::function<void(const Bag& model, std::int64_t rank, std::int64_t microbatch)>;
// Its forward alone. The backward of what it returns is a pass of its own.
using Loss = std::function<at::Tensor(const Bag& model, std::int64_t rank, std::int64_t microbatch)>;

struct Case {
  std::int64_t num_ranks = 2;
  std::int64_t num_replicas = 1;
  std::vector<std::int64_t> num_microbatches = {2};  // one entry for each replica, or one for all
  int num_steps = 2;
  FsdpConfig fsdp = {};
  RankBackend backend = RankBackend::kThreads;
  std::vector<std::vector<int>> units = {{0}, {1}, {2}, {3}, {4}};
  bool first_stays_gathered = false;
  std::vector<int> frozen = {};
};

at::Tensor input(std::int64_t rank, std::int64_t microbatch) {
  return values({2, 5}, static_cast<double>(10 * rank + microbatch));
}

ModulePtr<Bag> make_bag(const Case& drawn) {
  auto bag = make_module<Bag>();
  bag->to(at::kDouble);
  for (const int i : drawn.frozen) bag->linears[static_cast<std::size_t>(i)]->set_requires_grad(false);
  return bag;
}

std::int64_t num_microbatches(const Case& drawn, std::int64_t rank) {
  const std::int64_t replica = rank / (drawn.num_ranks / drawn.num_replicas);
  return drawn.num_microbatches[drawn.num_microbatches.size() == 1 ? 0 : static_cast<std::size_t>(replica)];
}

void shard(const ModulePtr<Bag>& model, const std::shared_ptr<FsdpRuntime>& runtime, const Case& drawn, World& world) {
  const DeviceMesh mesh("dense", {{"replicas", drawn.num_replicas}, {"shards", drawn.num_ranks / drawn.num_replicas}},
                        borrowed(world));
  const std::vector<FsdpAxes> axes = {{.mesh = mesh, .shard_axis = "shards", .replicate_axes = {"replicas"}}};
  for (const auto& linears : drawn.units) {
    FsdpUnitSpec unit{.name = cat("from ", linears[0]), .modules = {}, .axes = axes};
    for (const int i : linears) unit.modules.push_back(model->linears[static_cast<std::size_t>(i)].shared());
    unit.stays_gathered = drawn.first_stays_gathered && &linears == &drawn.units.front();
    parallelize_fsdp(runtime, unit);
  }
  parallelize_fsdp(runtime, {.name = "inner", .modules = {model->nest->inner.shared()}, .axes = axes});
  parallelize_fsdp(runtime, {.name = "nest", .modules = {model->nest.shared()}, .axes = axes});
}

double difference(const Parameter& ours, const Parameter& of_one_rank) {
  at::Tensor whole = of_one_rank.local().grad();
  if (!whole.defined()) whole = at::zeros_like(of_one_rank.local());
  const FlatRange range = flat_range(whole.numel(), ours.mesh(), ours.placements());
  if (range.numel() == 0) return 0.0;
  return (ours.stored().grad().flatten() - whole.reshape({-1}).narrow(0, range.begin, range.numel()))
      .abs()
      .max()
      .item<double>();
}

// A description of the fault; empty if there is none. "refused": the ranks ran different units and reported that. loss:
// null if the program is one pass.
std::string fault_of(const Case& drawn, const Program& program, const Loss& loss = nullptr) {
  const auto expected = make_bag(drawn);
  (void)initialized(expected);
  for (std::int64_t rank = 0; rank < drawn.num_ranks; ++rank) {
    for (std::int64_t i = 0; i < num_microbatches(drawn, rank); ++i) program(*expected, rank, i);
  }
  std::mutex mutex;
  std::string fault;
  run_ranks(drawn.backend, drawn.num_ranks, [&](World& world) {
    const auto model = make_bag(drawn);
    const auto runtime = std::make_shared<FsdpRuntime>(drawn.fsdp);
    shard(model, runtime, drawn, world);
    (void)initialized(model);
    const std::int64_t share = num_microbatches(drawn, world.rank());
    for (int step = 0; step < drawn.num_steps; ++step) {
      for (std::int64_t i = 0; i < share; ++i) {
        if (loss == nullptr) {
          runtime->begin_microbatch(i + 1 == share);
          program(*model, world.rank(), i);
          runtime->end_microbatch();
          continue;
        }
        runtime->begin_pass({.kind = StagePassKind::kForward, .microbatch = i});
        const at::Tensor value = loss(*model, world.rank(), i);
        runtime->end_pass();
        runtime->begin_pass({.kind = StagePassKind::kBackward, .microbatch = i, .is_last = i + 1 == share});
        value.backward();
        runtime->end_pass();
      }
      runtime->finish();
      const std::lock_guard lock(mutex);
      if (runtime->disagreement().item<double>() > 0.25) fault = "refused";
      const auto ours = model->named_parameters(), theirs = expected->named_parameters();
      for (std::size_t i = 0; fault.empty() && i < ours.size(); ++i) {
        if (!ours[i].second->requires_grad()) continue;
        const double error = difference(*ours[i].second, *theirs[i].second);
        if (!(error < 1e-9)) fault = cat("step ", step, " rank ", world.rank(), ": ", ours[i].first, " by ", error);
      }
      runtime->clear();
    }
  });
  return fault;
}

std::vector<Case> each_setting(Case drawn) {
  std::vector<Case> cases(7, drawn);
  cases[1].fsdp.reshard_after_forward = ReshardAfterForward::kAlways;
  cases[2].fsdp.reshard_after_forward = ReshardAfterForward::kNever;
  cases[3].fsdp.reduce_on_last_microbatch = true;
  cases[4].fsdp.gather = cases[4].fsdp.reduce = ExchangeMethod::kCopyEngine;
  cases[5].num_ranks = 6;
  cases[5].num_replicas = 2;
  cases[6].backend = RankBackend::kGloo;
  return cases;
}

void expect_one_ranks_gradients(const Program& program) {
  for (const Case& each : each_setting({})) EXPECT_EQ(fault_of(each, program), "");
}

void expect_one_ranks_gradients_in_passes(const Loss& loss) {
  const Program whole = [&](const Bag& model, std::int64_t rank, std::int64_t i) { loss(model, rank, i).backward(); };
  for (const Case& each : each_setting({})) {
    EXPECT_EQ(fault_of(each, whole), "");
    EXPECT_EQ(fault_of(each, whole, loss), "");
  }
}

// Two forwards before one backward, where a rank's loss leaves one of them out; the inputs of the first unit need no
// gradient.
TEST(FsdpPrograms, Run_pairs_of_which_a_rank_leaves_one_out) {
  expect_one_ranks_gradients([](const Bag& model, std::int64_t rank, std::int64_t i) {
    const at::Tensor a = model.chain(input(rank, i), {0, 1}), b = model.chain(input(rank, i).cos(), {0, 1});
    (rank == 0 ? a.sum() : (a + b).sum()).backward();
  });
}

TEST(FsdpPrograms, Run_forwards_after_backwards_that_a_rank_cuts_short) {
  expect_one_ranks_gradients([](const Bag& model, std::int64_t rank, std::int64_t i) {
    at::Tensor h = model.chain(input(rank, i), {0, 1, 2});
    if (rank == 0) h = h.detach().requires_grad_();
    model.chain(h, {3, 4}).sum().backward();
    model.chain(input(rank, i).cos(), {0, 1, 2, 3, 4}).sum().backward();
  });
}

TEST(FsdpPrograms, Run_a_graph_backwards_twice) {
  expect_one_ranks_gradients([](const Bag& model, std::int64_t rank, std::int64_t i) {
    const at::Tensor loss = model.chain(input(rank, i), {0, 1, 2, 3, 4}).square().sum();
    loss.backward({}, /*keep_graph=*/true);
    loss.backward();
  });
}

TEST(FsdpPrograms, Run_a_unit_without_gradients_in_what_a_checkpoint_computes_again) {
  expect_one_ranks_gradients([](const Bag& model, std::int64_t rank, std::int64_t i) {
    const auto body = [&model](const at::Tensor& x) {
      const at::Tensor a = model.forward(1, x);
      const at::NoGradGuard no_grad;
      return std::pair(a, at::sin(model.forward(1, a)));
    };
    const auto [a, b] = checkpoint(body, model.forward(0, input(rank, i)));
    (a + b).sum().backward();
  });
}

TEST(FsdpPrograms, Run_a_gradient_of_inputs_in_forward) {
  expect_one_ranks_gradients_in_passes([](const Bag& model, std::int64_t rank, std::int64_t i) {
    const at::Tensor x = input(rank, i).requires_grad_();
    const at::Tensor y = model.chain(x, {0, 1, 2}).sum();
    const at::Tensor slope = torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true)[0];
    return y * slope.square().sum();
  });
}

// A checkpoint of a program's own: units run without gradients in forward, and with them in backward.
struct Again : torch::autograd::Function<Again> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Bag* model) {
    context->save_for_backward({x});
    context->saved_data["model"] = reinterpret_cast<std::int64_t>(model);
    return model->chain(x, {2, 3});
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* const model = reinterpret_cast<const Bag*>(context->saved_data["model"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const at::AutoGradMode with_gradients(true);
    const at::Tensor y = model->chain(x, {2, 3});
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

TEST(FsdpPrograms, Run_forwards_in_a_backward) {
  expect_one_ranks_gradients_in_passes([](const Bag& model, std::int64_t rank, std::int64_t i) {
    return model.forward(4, Again::apply(model.chain(input(rank, i), {0, 1}), &model)).sum();
  });
}

// Each replica has its own data: docs/data.md.
TEST(FsdpPrograms, Run_other_numbers_of_microbatches_on_each_replica) {
  const Program program = [](const Bag& model, std::int64_t rank, std::int64_t i) {
    model.chain(input(rank, i), {0, 1, 2, 3, 4, 5}).sum().backward();
  };
  EXPECT_EQ(fault_of({.num_ranks = 4, .num_replicas = 2, .num_microbatches = {2, 3}}, program), "");
}

// A checkpoint around units that only one rank recomputes would gather units on that rank only.
TEST(FsdpPrograms, Refuse_other_regions_of_checkpoints_around_units_on_each_rank) {
  const Program program = [](const Bag& model, std::int64_t rank, std::int64_t i) {
    const auto region = [&model](std::vector<int> which) {
      return [&model, which = std::move(which)](const at::Tensor& x) { return model.chain(x, which); };
    };
    const at::Tensor h = model.forward(0, input(rank, i));
    const at::Tensor a = checkpoint(region({1, 2}), h), b = checkpoint(region({3, 4}), h);
    (rank % 2 == 0 ? a : b).sum().backward();
  };
  EXPECT_EQ(fault_of({}, program), "refused");
  const FsdpConfig copies{.gather = ExchangeMethod::kCopyEngine, .reduce = ExchangeMethod::kCopyEngine};
  EXPECT_EQ(fault_of({.fsdp = copies}, program), "");  // each rank copies what it needs, without the others
}

class Draw {
 public:
  explicit Draw(int seed) : seed_(seed), generator_(static_cast<unsigned>(seed)) {
    drawn_.num_ranks = 2 + below(5);
    if (drawn_.num_ranks % 2 == 0 && drawn_.num_ranks > 2 && below(2) == 0) drawn_.num_replicas = 2;
    drawn_.num_microbatches = {1 + below(3)};
    drawn_.fsdp.reshard_after_forward = static_cast<ReshardAfterForward>(below(3));
    drawn_.fsdp.reduce_on_last_microbatch = below(3) == 0;
    if (below(3) == 0) drawn_.fsdp.gather = ExchangeMethod::kCopyEngine;
    if (below(3) == 0) drawn_.fsdp.reduce = ExchangeMethod::kCopyEngine;
    if (below(6) == 0) drawn_.backend = RankBackend::kGloo;
    for (int i = 0; i < Bag::kNumLinears; ++i) {
      if (below(5) == 0) drawn_.frozen.push_back(i);
    }
    const std::vector<std::vector<std::vector<int>>> units = {
        drawn_.units, {{0, 4}, {1}, {2}, {3}}, {{3}, {1, 2}, {0}, {4}}, {{4}, {3}, {2}, {1}, {0}}};
    drawn_.units = units[static_cast<std::size_t>(below(4))];
    drawn_.first_stays_gathered = below(2) == 0;
    const int num_calls = 2 + below(9);
    for (int i = 0; i < num_calls; ++i) calls_.push_back({below(10), below(i + 1), below(Bag::kNumLinears + 1)});
    num_calls_later_ = below(3) == 0 ? 1 + below(num_calls) : num_calls;
    leaves_out_losses_ = below(4) == 0;
  }

  [[nodiscard]] const Case& drawn() const { return drawn_; }
  void operator()(const Bag& model, std::int64_t rank, std::int64_t microbatch) const {
    std::vector<at::Tensor> tensors = {input(rank, microbatch)};
    if (seed_ % 2 == 1) tensors[0].requires_grad_();
    const int num_calls = microbatch > 0 ? num_calls_later_ : static_cast<int>(calls_.size());
    for (int i = 0; i < num_calls; ++i) {
      const auto [kind, source, which] = calls_[static_cast<std::size_t>(i)];
      at::Tensor x = tensors[static_cast<std::size_t>(source)];
      if (kind == 9) x = x.detach();
      if (kind == 8) {
        const at::NoGradGuard no_grad;
        (void)model.forward(which, x);
      }
      tensors.push_back(x + model.forward(which, x));
    }
    std::mt19937 own(static_cast<unsigned>(seed_ * 1000 + rank * 10 + microbatch));
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (const at::Tensor& each : tensors) {
      if (own() % 3 == 0) loss = loss + each.square().sum();
    }
    if (loss.requires_grad() && (!leaves_out_losses_ || own() % 2 == 0)) loss.backward();
  }

 private:
  struct Call {
    int kind;  // 9: of a detached input; 8: after one without gradients
    int source;
    int which;
  };
  int below(int end) { return static_cast<int>(generator_() % static_cast<unsigned>(end)); }

  int seed_;
  std::mt19937 generator_;
  Case drawn_;
  std::vector<Call> calls_;
  int num_calls_later_ = 0;  // in all microbatches except the first
  bool leaves_out_losses_ = false;
};

TEST(FsdpPrograms, Have_the_gradients_of_one_rank_whatever_each_rank_leaves_out) {
  for (int seed = 0; seed < 150; ++seed) {
    const Draw draw(seed);
    EXPECT_EQ(fault_of(draw.drawn(), std::cref(draw)), "") << "seed " << seed;
  }
}

}  // namespace
}  // namespace d9d::test::fsdp_programs_test
