// Stages of a custom model, whose transfers differ from those of the models of the library, train as the model in one
// piece does, in float64.
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <variant>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/normalization.h>

#include "d9d/blocks/linear/linear.h"
#include "d9d/data/pack/as_pack_stream.h"
#include "d9d/loop/language_model/auto_providers.h"
#include "d9d/loop/run/trainer.h"
#include "d9d/loop/task/shard_over_data.h"
#include "d9d/modules/adopt.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/tolerances.h"

namespace d9d::test::own_stages_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kWidth = 4;
constexpr std::int64_t kNumLayers = 4;
constexpr std::int64_t kNumMicrobatches = 8;

using Tensors = std::vector<at::Tensor>;

struct Batch {
  at::Tensor x;  // [B, kWidth]
  static constexpr auto fields() { return record<Batch>(field("x", &Batch::x)); }
};

// The task keeps no reference to an input, so only the loop keeps it.
struct Types {
  using Batch = own_stages_test::Batch;
  using Input = at::Tensor;
  using Transfer = Tensors;
  using Shared = std::monostate;
  using Output = at::Tensor;
  using State = std::monostate;
};

struct Net;
// Functions at the input of the first layer, between layers, and at the output of the last layer.
struct Layers {
  std::function<Tensors(const at::Tensor& x)> begin;
  std::function<Tensors(Net& net, std::int64_t index, const Tensors& arrived)> layer;
  std::function<at::Tensor(const Tensors& left)> end;
  bool have_own_sums = true;  // false: the layers of a stage share one, which has one name on all stages
  bool have_norms = false;    // norms of torch::nn
};

struct Net : Module {
  Net(const Layers& of_net, const PipelineStageInfo& of_stage) : layers(of_net), stage(of_stage) {
    const LayerRange range = layers_of_stage({.num_layers = kNumLayers}, stage);
    for (std::int64_t i = range.begin; i < range.end; ++i) {
      linears.emplace(i, register_module<Linear>(cat("linear", i), LinearConfig{kWidth, kWidth}));
      const bool is_new = sums.empty() || layers.have_own_sums;
      const std::string name = layers.have_own_sums ? cat("sum", i) : "sum";
      if (layers.have_norms) {
        norms.emplace(i, register_module(cat("norm", i), adopt([] {
                                           return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
                                         })));
      }
      sums.emplace(i, is_new ? register_buffer(name, {.shape = {1}, .init = init::zeros()}) : sums.begin()->second);
    }
    to(at::kDouble);
  }
  std::variant<Tensors, at::Tensor> forward(const at::Tensor& x, const std::monostate&) {
    EXPECT_TRUE(stage.is_first());
    return forward(layers.begin(x * 1), {});
  }
  std::variant<Tensors, at::Tensor> forward(const Tensors& arrived, const std::monostate&) {
    Tensors tensors = arrived;
    for (const auto& [index, linear] : linears) tensors = layers.layer(*this, index, tensors);
    if (stage.is_last()) return layers.end(tensors);
    return tensors;
  }
  Tensors stage_transfer(const at::Tensor& x, StageBoundary) const {
    Tensors like = layers.begin(at::zeros_like(x));
    for (at::Tensor& tensor : like) tensor = tensor.defined() ? tensor.to(at::kMeta) : tensor;
    return like;
  }

  const Layers layers;
  const PipelineStageInfo stage;
  std::map<std::int64_t, ModulePtr<Linear>> linears;
  std::map<std::int64_t, BufferPtr> sums;
  std::map<std::int64_t, ModulePtr<Adopted<torch::nn::LayerNormImpl>>> norms;
};

struct Task : TrainTask<Types> {
  ForwardInputs<Types> build_forward_inputs(const Batch& batch) override {
    return {.input = batch.x.clone(), .shared = {}, .state = {}, .num_tokens = batch.x.size(0)};
  }
  LossResult compute_loss(const at::Tensor& output, std::monostate&, const JobSchedule&) override {
    return {.loss = output.square().mean()};
  }
};

struct Stream {
  std::optional<std::vector<Batch>> next() {
    std::vector<Batch> pack;
    for (std::int64_t i = 0; i < (step == 1 ? of_second_step : kNumMicrobatches); ++i) {
      const std::int64_t rows = 1 + (step + i) % 3;
      const at::Tensor number = at::arange(rows * kWidth, at::kDouble) + static_cast<double>(1 + i + 10 * step);
      pack.push_back({at::sin(number * number).view({rows, kWidth})});
    }
    ++step;
    return pack;
  }
  std::optional<std::int64_t> total_steps() const { return std::nullopt; }
  nlohmann::json state() const { return step; }
  void load_state(const nlohmann::json& state) { step = state; }
  std::int64_t of_second_step = kNumMicrobatches;
  std::int64_t step = 0;
};

struct Provider : ModelProvider<Types>, DataProvider<Batch> {
  explicit Provider(const Layers& of_net) : layers(of_net) {}
  ModelStage<Types> initialize_model_stage(const DistContext&, const PipelineStageInfo& stage) override {
    net = make_module<Net>(layers, ignores_stage ? PipelineStageInfo() : stage);
    return as_model_stage<Types>(net);
  }
  void parallelize_model_stage(const DistContext& context, const PipelineStageInfo&, Module&) override {
    std::vector<std::shared_ptr<Module>> units;
    for (const auto& [index, linear] : net->linears) units.push_back(linear.shared());
    shard_over_data(context, net.shared(), units);
  }
  std::unique_ptr<PackStream<Batch>> build_pack_stream(const DistContext& context,
                                                       std::optional<std::int64_t>) override {
    return as_pack_stream<Batch>(Stream{.of_second_step = of_second_step(context.data_parallel_rank())});
  }
  const Layers& layers;
  ModulePtr<Net> net = nullptr;
  bool ignores_stage = false;  // builds the whole model for each stage
  std::function<std::int64_t(std::int64_t rank)> of_second_step = [](std::int64_t) { return kNumMicrobatches; };
};

struct Layout {
  DeviceMeshParameters mesh = {};
  PipelineScheduleConfig schedule = {};
  RankBackend backend = RankBackend::kThreads;
  ExchangeMethod messages = ExchangeMethod::kAuto;
  bool saves = false;
};

std::map<std::string, at::Tensor> train(Provider provider, const Layout& layout) {
  std::map<std::string, at::Tensor> trained;
  std::mutex mutex;
  run_ranks(layout.backend, layout.mesh.world_size(), [&](World& world) {
    const DistContext context(
        {.mesh = layout.mesh, .world = borrowed(world), .local_rank = world.rank(), .log_sink = [](std::string_view) {
         }});
    Task task;
    AutoOptimizerProvider optimizer(AdamWConfig{.lr = 1e-2});
    AutoLRSchedulerProvider lr_scheduler(
        PiecewiseConfig{.initial_multiplier = 1.0,
                        .phases = {RestPhaseConfig{.target_multiplier = 1.0, .curve = LinearCurveConfig{}}}});
    TrainerConfig config;
    config.run.name = "own stages";
    config.schedule.total_steps = 2;
    config.pipelining = {.schedule = layout.schedule, .messages = layout.messages};
    config.checkpointing.save_dir = std::filesystem::path(::testing::TempDir()) / "d9d_own_stages";
    config.checkpointing.period_steps = {layout.saves ? StepActionMode::kLastStep : StepActionMode::kDisable};
    config.refuse_equal_data = false;
    Provider own = provider;
    Trainer<Types> trainer(context, config,
                           {.task = task,
                            .model = own,
                            .data = own,
                            .optimizer = optimizer,
                            .lr_scheduler = lr_scheduler,
                            .tracker = nullptr});
    ASSERT_EQ(trainer.train(), TrainingOutcome::kFinished);
    const auto whole = trainer.module().full_state_dict();
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : whole) trained.insert_or_assign(name, tensor.detach().clone());
  });
  return trained;
}

// Messages through the memory of this process, and through sockets.
std::vector<Layout> in_a_row(std::int64_t num_ranks, const PipelineScheduleConfig& schedule) {
  const DeviceMeshParameters mesh{.pipeline_parallel = num_ranks};
  return {
      {.mesh = mesh, .schedule = schedule},
      {.mesh = mesh, .schedule = schedule, .backend = RankBackend::kGloo, .messages = ExchangeMethod::kCommunicator}};
}

void expect_trains_as_one_piece(const Layers& layers) {
  const auto expected = train(Provider(layers), {});
  for (const std::int64_t num_ranks : {2, 4}) {
    for (const PipelineScheduleConfig& schedule :
         {PipelineScheduleConfig(GPipeScheduleConfig{}), PipelineScheduleConfig(OneFOneBScheduleConfig{})}) {
      for (const Layout& layout : in_a_row(num_ranks, schedule)) {
        SCOPED_TRACE(cat(schedule_of(schedule).name, " on ", num_ranks, " ", to_string(layout.backend)));
        EXPECT_EQ(difference(train(Provider(layers), layout), expected, tolerance("fp64")), "");
      }
    }
  }
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}),
        PipelineScheduleConfig(AutoScheduleConfig{.max_stages_per_rank = 1})}) {
    const Layout layout{.mesh = {.pipeline_parallel = 2}, .schedule = schedule};
    EXPECT_EQ(difference(train(Provider(layers), layout), expected, tolerance("fp64")), "");
  }
}

std::string error_of(const Provider& provider, const Layout& layout) {
  try {
    (void)train(provider, layout);
    return "";
  } catch (const StateError& error) {
    return error.what();
  }
}

at::Tensor activated(Net& net, std::int64_t index, const at::Tensor& x) { return at::tanh(net.linears.at(index)(x)); }

Layers activated_layers() {
  return {.begin = [](const at::Tensor& x) { return Tensors{x}; },
          .layer = [](Net& net, std::int64_t index,
                      const Tensors& arrived) { return Tensors{activated(net, index, arrived[0])}; },
          .end = [](const Tensors& left) { return left[0]; }};
}

TEST(OwnStages, Whose_inputs_nobody_else_keeps_train_as_one_piece_does) {
  expect_trains_as_one_piece(activated_layers());
}

// All data-parallel ranks read the same data, so that results are those of one rank.
TEST(OwnStages, Of_torch_nn_in_part_train_over_replicas_and_shards_as_one_piece_does) {
  Layers layers = activated_layers();
  layers.have_norms = true;
  layers.layer = [](Net& net, std::int64_t index, const Tensors& arrived) {
    return Tensors{activated(net, index, net.norms.at(index)(arrived[0])) + arrived[0]};
  };
  const auto expected = train(Provider(layers), {});
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{}),
        PipelineScheduleConfig(OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true}),
        PipelineScheduleConfig(ZeroBubbleVScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    for (const DeviceMeshParameters& mesh :
         {DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_shard = 2},
          DeviceMeshParameters{.pipeline_parallel = 2, .data_parallel_replicate = 2}}) {
      SCOPED_TRACE(cat(schedule_of(schedule).name, " over ", mesh.data_parallel_shard, " shards"));
      const auto trained = train(Provider(layers), {.mesh = mesh, .schedule = schedule});
      EXPECT_EQ(difference(trained, expected, tolerance("fp64")), "");
    }
  }
}

TEST(OwnStages, That_hand_on_complex_numbers_train_as_one_piece_does) {
  expect_trains_as_one_piece({.begin = [](const at::Tensor& x) { return Tensors{at::complex(x, x / 2)}; },
                              .layer =
                                  [](Net& net, std::int64_t index, const Tensors& arrived) {
                                    const at::Tensor real = activated(net, index, at::real(arrived[0]));
                                    return Tensors{at::complex(real, at::imag(arrived[0]) * real)};
                                  },
                              .end = [](const Tensors& left) { return at::real(left[0]) + at::imag(left[0]); }});
}

TEST(OwnStages, That_hand_on_a_conjugate_that_is_not_computed_train_as_one_piece_does) {
  for (const bool is_alone : {false, true}) {
    expect_trains_as_one_piece(
        {.begin =
             [=](const at::Tensor& x) {
               return is_alone ? Tensors{at::complex(x, x / 2)} : Tensors{at::complex(x, x / 2), x};
             },
         .layer =
             [=](Net& net, std::int64_t index, const Tensors& arrived) {
               const at::Tensor real = activated(net, index, at::real(arrived[0]) + at::imag(arrived[0]));
               const at::Tensor conjugate = at::complex(real, real / 3).conj();
               return is_alone ? Tensors{conjugate} : Tensors{conjugate, arrived[1]};
             },
         .end = [](const Tensors& left) { return at::real(left[0]) + at::imag(left[0]); }});
  }
}

TEST(OwnStages, That_count_in_place_in_an_arrived_tensor_train_as_one_piece_does) {
  expect_trains_as_one_piece({.begin =
                                  [](const at::Tensor& x) {
                                    return Tensors{x, at::zeros({1}, x.options().dtype(at::kLong))};
                                  },
                              .layer =
                                  [](Net& net, std::int64_t index, const Tensors& arrived) {
                                    arrived[1].add_(1);
                                    return Tensors{activated(net, index, arrived[0]) + arrived[1], arrived[1]};
                                  },
                              .end = [](const Tensors& left) { return left[0]; }});
}

TEST(OwnStages, That_hand_on_no_tensor_train_as_one_piece_does) {
  expect_trains_as_one_piece(
      {.begin = [](const at::Tensor&) { return Tensors{}; },
       .layer =
           [](Net& net, std::int64_t index, const Tensors& /*arrived*/) {
             const bool is_last = index + 1 == kNumLayers;
             return is_last ? Tensors{activated(net, index, at::ones({2, kWidth}, at::kDouble))} : Tensors{};
           },
       .end = [](const Tensors& left) { return left[0]; }});
}

// The sum over microbatches is the memory of a layer, which its next forward writes again while a link may still read
// it.
TEST(OwnStages, That_hand_on_memory_which_they_write_again_are_refused_and_copies_train_as_one_piece_does) {
  const auto with_sums = [](bool are_cloned) {
    return Layers{.begin =
                      [](const at::Tensor& x) {
                        return Tensors{x, at::zeros({1}, x.options())};
                      },
                  .layer =
                      [are_cloned](Net& net, std::int64_t index, const Tensors& arrived) {
                        const at::Tensor x = activated(net, index, arrived[0]) + arrived[1];
                        const at::Tensor& sum = net.sums.at(index)->local;
                        sum.add_(x.detach().sum());
                        return Tensors{x, are_cloned ? sum.clone() : sum};
                      },
                  .end = [](const Tensors& left) { return left[0]; }};
  };
  const Layers cloned = with_sums(true), written_again = with_sums(false);
  const auto expected = train(Provider(cloned), {});
  std::vector<Layout> layouts = in_a_row(2, OneFOneBScheduleConfig{});
  layouts.push_back({.schedule = LoopedBfsScheduleConfig{.num_stages_per_rank = 2}});
  for (const Layout& layout : layouts) {
    EXPECT_EQ(difference(train(Provider(cloned), layout), expected, tolerance("fp64")), "");
    EXPECT_THAT(error_of(Provider(written_again), layout),
                HasSubstr("expected tensor 1 that stage 0 sends to stage 1 for microbatch 0 to stay"));
  }
}

TEST(OwnStages, Built_without_their_stage_info_are_refused) {
  const Layers layers = activated_layers();
  Provider provider(layers);
  provider.ignores_stage = true;
  EXPECT_THAT(error_of(provider, {.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}}),
              AllOf(HasSubstr("Types::Transfer on every other"), HasSubstr("from the PipelineStageInfo"),
                    HasSubstr("stage 0, microbatch 0 of step 0")));
}

TEST(OwnStages, That_announce_an_undefined_tensor_are_refused) {
  Layers layers = activated_layers();
  layers.begin = [](const at::Tensor& x) { return Tensors{x, at::Tensor()}; };
  for (const std::int64_t num_ranks : {1, 2}) {
    const Layout layout{.mesh = {.pipeline_parallel = num_ranks}, .schedule = ZeroBubbleVScheduleConfig{}};
    EXPECT_THAT(error_of(Provider(layers), layout), HasSubstr("got Double [1, 4], an undefined tensor of stage "));
  }
}

TEST(OwnStages, That_save_other_values_of_a_buffer_under_one_name_are_refused) {
  const auto with_factor = [](double factor) {
    return Layers{.begin = [](const at::Tensor& x) { return Tensors{x}; },
                  .layer =
                      [factor](Net& net, std::int64_t index, const Tensors& arrived) {
                        net.sums.at(index)->local.add_(factor * arrived[0].detach().sum());
                        return Tensors{activated(net, index, arrived[0])};
                      },
                  .end = [](const Tensors& left) { return left[0]; },
                  .have_own_sums = false};
  };
  const Layers summed = with_factor(1.0), constant = with_factor(0.0);
  const LoopedBfsScheduleConfig looped{.num_stages_per_rank = 2};
  for (const Layout& layout :
       {Layout{.schedule = looped, .saves = true},
        Layout{.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}, .saves = true}}) {
    const auto folder = std::filesystem::path(::testing::TempDir()) / "d9d_own_stages";
    std::filesystem::remove_all(folder);
    EXPECT_THAT(
        [&] { (void)train(Provider(summed), layout); },
        ThrowsMessage<ConfigError>(HasSubstr("expected equal values of model.sum[0:1] on all ranks that have it")));
    EXPECT_NO_THROW((void)train(Provider(constant), layout));
    std::filesystem::remove_all(folder);
  }
}

TEST(OwnStages, Without_a_microbatch_in_a_later_step_on_some_rank_are_refused) {
  const Layers layers = activated_layers();
  Provider provider(layers);
  provider.of_second_step = [](std::int64_t rank) { return rank == 0 ? kNumMicrobatches : 0; };
  for (const Layout& layout :
       {Layout{.mesh = {.data_parallel_replicate = 2}},
        Layout{.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2}, .schedule = OneFOneBScheduleConfig{}}}) {
    EXPECT_THAT(error_of(provider, layout),
                HasSubstr("expected a microbatch on every rank in step 1, got none on rank"));
  }
}

}  // namespace
}  // namespace d9d::test::own_stages_test
