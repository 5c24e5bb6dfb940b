// A pipeline with tied embeddings, which its first and its last stage have, trains as one piece on one rank does:
// losses, norms, parameters. Both copies stay equal bit for bit, and are saved, exported and counted once.
#include <filesystem>

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/model_state/io/huggingface_directory.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/turns.h"

namespace d9d::test::tied_pipeline_test {
namespace {

namespace fs = std::filesystem;
using pipeline::expect_same;
using pipeline::folder;
using pipeline::PipelineJob;
using pipeline::schedules;
using pipeline::train;
using pipeline::Trained;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

const Trained& tied_in_one_piece() {
  static const Trained trained = train({.ties_embeddings = true});
  return trained;
}

std::vector<PipelineScheduleConfig> all_schedules() {
  std::vector<PipelineScheduleConfig> all = schedules();
  all.emplace_back(OneFOneBScheduleConfig{.num_stages_per_rank = 2});
  all.emplace_back(OneFOneBScheduleConfig{.zero_bubble = true});
  return all;
}

void expect_as_in_one_piece(const DeviceMeshParameters& mesh, const PipelineScheduleConfig& schedule,
                            const FsdpConfig& fsdp = {}, bool checkpoints = false) {
  SCOPED_TRACE(cat(schedule_of(schedule).name, " on ", mesh.pipeline_parallel, " of ", mesh.world_size()));
  expect_same(
      train({.mesh = mesh, .schedule = schedule, .fsdp = fsdp, .checkpoints = checkpoints, .ties_embeddings = true}),
      tied_in_one_piece());
}

TEST(TiedPipeline, Each_schedule_on_one_two_and_four_ranks_trains_as_one_piece_does) {
  for (const PipelineScheduleConfig& schedule : all_schedules()) {
    for (const std::int64_t num_ranks : {1, 2, 4}) expect_as_in_one_piece({.pipeline_parallel = num_ranks}, schedule);
  }
}

TEST(TiedPipeline, Sharded_and_replicated_stages_of_each_schedule_train_as_one_piece_does) {
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  test::Turns turns(3);
  const auto expect_in_turn = [&](const DeviceMeshParameters& mesh, const auto&... how) {
    if (turns.has_next()) expect_as_in_one_piece(mesh, how...);
  };
  const FsdpConfig copies{.gather = ExchangeMethod::kCopyEngine, .reduce = ExchangeMethod::kCopyEngine};
  for (const PipelineScheduleConfig& schedule : all_schedules()) {
    expect_in_turn({.pipeline_parallel = 2, .data_parallel_replicate = 2}, schedule);
    expect_in_turn({.pipeline_parallel = 2, .data_parallel_shard = 2}, schedule);
    expect_in_turn({.pipeline_parallel = 2, .data_parallel_shard = 2}, schedule, once, /*checkpoints=*/true);
    expect_in_turn({.pipeline_parallel = 2, .data_parallel_shard = 2}, schedule, copies);
  }
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{}), PipelineScheduleConfig(ZeroBubbleVScheduleConfig{})}) {
    expect_in_turn({.pipeline_parallel = 2, .data_parallel_replicate = 2, .data_parallel_shard = 2}, schedule);
    expect_in_turn({.pipeline_parallel = 4, .data_parallel_shard = 2}, schedule, once);
    expect_in_turn({.pipeline_parallel = 2, .context_parallel_shard = 2}, schedule);
  }
}

TEST(TiedPipeline, Over_sockets_with_experts_trains_as_one_piece_does) {
  const Trained expected = train({.has_experts = true, .ties_embeddings = true});
  for (const PipelineScheduleConfig& schedule :
       {PipelineScheduleConfig(OneFOneBScheduleConfig{}), PipelineScheduleConfig(DualPipeVScheduleConfig{})}) {
    expect_same(train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2},
                       .schedule = schedule,
                       .has_experts = true,
                       .ties_embeddings = true,
                       .backend = RankBackend::kGloo}),
                expected);
  }
}

TEST(TiedPipeline, With_a_frozen_embedding_trains_as_one_piece_does) {
  const Trained expected = train({.ties_embeddings = true, .freezes_first = true});
  for (const PipelineScheduleConfig& schedule : schedules()) {
    SCOPED_TRACE(schedule_of(schedule).name);
    expect_same(train({.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                       .schedule = schedule,
                       .ties_embeddings = true,
                       .freezes_first = true}),
                expected);
  }
}

// The comparison of the copies of all ranks is in pipeline::train().
TEST(TiedPipeline, Copies_that_are_rounded_stochastically_stay_equal) {
  for (const DeviceMeshParameters& mesh : {DeviceMeshParameters{.pipeline_parallel = 2},
                                           DeviceMeshParameters{.pipeline_parallel = 4, .data_parallel_shard = 2}}) {
    const PipelineJob job{.mesh = mesh,
                          .schedule = OneFOneBScheduleConfig{},
                          .ties_embeddings = true,
                          .dtype = at::kBFloat16,
                          .optimizer = StochasticAdamWConfig{.lr = 1e-2, .state_dtype = Dtype::kBFloat16}};
    const Trained trained = train(job);
    const std::string name = "model.embed_tokens.token_embedding.regular.weight";
    EXPECT_GT((trained.parameters.at(name) - trained.at_start.at("model." + name)).abs().max().item<float>(), 0.0f);
  }
}

std::string log_of(const PipelineJob& job) {
  ::testing::internal::CaptureStderr();
  (void)train(job);
  return ::testing::internal::GetCapturedStderr();
}

// Returns the number of parameters in the first lines of the log, such as "17.7k".
std::string num_parameters(const PipelineJob& job) {
  const std::string text = log_of(job);
  const std::size_t end = text.find(" parameters, ");
  return end == std::string::npos ? text : text.substr(text.rfind(' ', end - 1) + 1, end - text.rfind(' ', end - 1));
}

TEST(TiedPipeline, Announces_as_many_parameters_as_one_piece_has) {
  const std::string expected = num_parameters({.ties_embeddings = true});
  EXPECT_THAT(expected, StartsWith("17.7k"));
  EXPECT_THAT(num_parameters({}), Not(StartsWith("17.7k")));  // with an untied head
  for (const PipelineScheduleConfig& schedule : schedules()) {
    const PipelineJob job{.mesh = {.pipeline_parallel = 2}, .schedule = schedule, .ties_embeddings = true};
    EXPECT_EQ(num_parameters(job), expected);
  }
}

TEST(TiedPipeline, Announces_which_parameters_several_stages_have) {
  const std::string line = "several pipeline stages have, and train as one: model.embed_tokens.token_embedding.added";
  const PipelineJob tied{
      .mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}, .ties_embeddings = true};
  EXPECT_THAT(log_of(tied), HasSubstr(line));
  EXPECT_THAT(log_of({.mesh = tied.mesh, .schedule = tied.schedule}), Not(HasSubstr("train as one")));
}

// Pairs of the tied parameters of the first and the last stage.
std::vector<std::pair<at::Tensor, at::Tensor>> tied_pairs(const Module& first, const Module& last) {
  std::map<std::string, at::Tensor> of_first;
  for (const auto& [name, parameter] : first.named_parameters()) of_first[name] = parameter->local().detach();
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  for (const auto& [name, parameter] : last.named_parameters()) {
    if (of_first.contains(name)) pairs.emplace_back(of_first.at(name), parameter->local().detach());
  }
  return pairs;
}

at::Tensor losses_of_last_stage(DecoderForCausalLM& last) {
  const at::NoGradGuard no_grad;
  const TokenBatch batch = pipeline::microbatch(0, 0);
  const at::Tensor hidden = at::sin(at::arange(batch.input_ids.numel() * last.model->hidden_size(), at::kDouble));
  const SequenceTransfer arrived{.hidden_states = hidden.view({1, batch.input_ids.numel(), last.model->hidden_size()}),
                                 .hidden_states_snapshot = std::nullopt,
                                 .auxiliary_loss = std::nullopt};
  const ModulePtr<DecoderForCausalLM> model(std::shared_ptr<DecoderForCausalLM>(std::shared_ptr<void>(), &last));
  DecoderForCausalLM::Shared shared;
  shared.sequence.position_ids = batch.position_ids;
  shared.head.labels = batch.labels;
  const auto output = model(SequenceStageInput(arrived), shared);
  return std::get<DecoderOutput<LanguageModellingHead>>(output).head.cross_entropy;
}

// As an event handler does that evaluates the stage by itself.
TEST(TiedPipeline, A_stage_that_a_handler_calls_reads_what_it_wrote_to_the_first) {
  DecoderForCausalLM* last = nullptr;
  Module* first = nullptr;
  int num_calls = 0;
  const auto check = [&] {
    ++num_calls;
    const at::NoGradGuard no_grad;
    const auto pairs = tied_pairs(*first, *last);
    ASSERT_FALSE(pairs.empty());
    std::vector<at::Tensor> values;
    for (const auto& [own, copy] : pairs) {
      values.push_back(own.clone());
      own.mul_(2);
      copy.mul_(2);
    }
    const at::Tensor expected = losses_of_last_stage(*last);  // both were written
    for (const auto& [own, copy] : pairs) copy.zero_();
    EXPECT_TRUE(at::equal(losses_of_last_stage(*last), expected));
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      pairs[i].first.copy_(values[i]);
      pairs[i].second.copy_(values[i]);
    }
  };
  PipelineJob job{.schedule = ZeroBubbleVScheduleConfig{}, .ties_embeddings = true};
  job.on_stage = [&](const PipelineStageInfo& stage, Module& module) {
    if (stage.is_first()) first = &module;
    if (stage.is_last()) last = dynamic_cast<DecoderForCausalLM*>(&module);
  };
  job.on_updated = check;
  expect_same(train(job), tied_in_one_piece());
  EXPECT_EQ(num_calls, pipeline::kNumSteps);
}

class TiedPipelineFolders : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }
};

// The bytes of the tensors in the safetensors files of a folder.
std::int64_t bytes_in(const fs::path& path) {
  std::int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::uint64_t header = 0;
    file.read(reinterpret_cast<char*>(&header), sizeof header);
    bytes += static_cast<std::int64_t>(entry.file_size() - sizeof header - header);
  }
  return bytes;
}

std::vector<PipelineJob> layouts() {
  return {{.ties_embeddings = true},
          {.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}, .ties_embeddings = true},
          {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
           .schedule = DualPipeVScheduleConfig{},
           .ties_embeddings = true},
          {.mesh = {.pipeline_parallel = 4}, .schedule = GPipeScheduleConfig{}, .ties_embeddings = true},
          {.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2},
           .schedule = ZeroBubbleVScheduleConfig{},
           .ties_embeddings = true},
          {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
           .schedule = OneFOneBScheduleConfig{.num_stages_per_rank = 2, .zero_bubble = true},
           .ties_embeddings = true}};
}

TEST_F(TiedPipelineFolders, Checkpoints_have_the_embedding_once_and_continue_on_any_stages_as_one_piece_would) {
  constexpr std::int64_t kSaved = 2;
  const std::vector<PipelineJob> all = layouts();
  Trained whole = tied_in_one_piece();
  std::erase_if(whole.logged, [&](const nlohmann::json& line) { return line.value("step", kSaved) < kSaved; });
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    PipelineJob first = all[i];
    first.save_dir = "first";
    first.save_period = kSaved;
    (void)train(first);
    fs::remove_all(folder() / "first" / "save-3");
    const std::int64_t own_bytes = bytes_in(folder() / "first" / cat("save-", kSaved));
    if (i == 0) bytes = own_bytes;
    EXPECT_EQ(own_bytes, bytes);
    for (const std::size_t distance : {1, 2}) {
      PipelineJob rest = all[(i + distance) % all.size()];
      SCOPED_TRACE(cat("from ", i, " to ", (i + distance) % all.size()));
      fs::remove_all(folder() / "rest");
      fs::copy(folder() / "first", folder() / "rest", fs::copy_options::recursive);
      rest.save_dir = "rest";
      rest.save_period = kSaved;
      expect_same(train(rest), whole);
    }
    fs::remove_all(folder() / "first");
  }
}

TEST_F(TiedPipelineFolders, Exports_to_transformers_have_the_embedding_once_and_are_read_by_both_stages) {
  std::int64_t bytes = 0;
  for (const PipelineJob& layout : layouts()) {
    PipelineJob job = layout;
    job.is_huggingface = true;
    job.export_to = "export";
    const Trained trained = train(job);
    const HuggingFaceDirectory exported(folder() / "export");
    EXPECT_THAT(exported.names(), AllOf(Contains("model.embed_tokens.weight"), Not(Contains("lm_head.weight"))));
    if (bytes == 0) bytes = bytes_in(folder() / "export");
    EXPECT_EQ(bytes_in(folder() / "export"), bytes);
    PipelineJob next = layout;
    next.is_huggingface = true;
    next.model.source_checkpoint = folder() / "export";
    next.num_steps = 1;
    const Trained again = train(next);
    for (const auto& [name, tensor] : trained.parameters) {
      EXPECT_TRUE(at::equal(again.at_start.at("model." + name), tensor)) << name;
    }
    fs::remove_all(folder() / "export");
  }
}

}  // namespace
}  // namespace d9d::test::tied_pipeline_test
