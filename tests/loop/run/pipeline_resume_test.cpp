// Jobs with pipeline stages save themselves, and continue with any other division into stages.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/model_state/io/huggingface_directory.h"

#include "tests/loop/run/pipeline_job.h"
#include "tests/support/turns.h"

namespace d9d::test::pipeline_resume_test {
namespace {

namespace fs = std::filesystem;
using pipeline::expect_same;
using pipeline::folder;
using pipeline::PipelineJob;
using pipeline::train;
using pipeline::Trained;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kSaved = 3;
constexpr std::int64_t kSteps = 5;

// Keeps only the logged values from `step` on.
Trained since(Trained trained, std::int64_t step) {
  std::erase_if(trained.logged, [&](const nlohmann::json& line) { return line.value("step", kSteps) < step; });
  return trained;
}

class PipelineResume : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder()); }
  void TearDown() override { fs::remove_all(folder()); }

  // Trains all steps, and keeps only the checkpoint of step kSaved, in the folder `kept`.
  static Trained save(PipelineJob job) {
    fs::remove_all(folder() / "kept");
    job.num_steps = kSteps;
    job.save_dir = "kept";
    job.save_period = kSaved;
    Trained whole = train(job);
    for (const auto& entry : fs::directory_iterator(folder() / "kept")) {
      if (entry.path().filename() != cat("save-", kSaved)) fs::remove_all(entry.path());
    }
    return whole;
  }
  // Continues from a copy of the folder `kept`. The job must begin bit for bit with the saved values.
  static Trained resume(PipelineJob job) {
    fs::remove_all(folder() / "run");
    fs::copy(folder() / "kept", folder() / "run", fs::copy_options::recursive);
    job.num_steps = kSteps;
    job.save_dir = "run";
    job.save_period = kSteps;
    Trained rest = train(job);
    const auto saved = checkpoint_at(folder() / "kept").value();
    const NamedTensors tensors = saved.tensors("");
    EXPECT_FALSE(tensors.names.empty());
    for (const std::string& name : tensors.names) {
      const auto found = rest.at_start.find(name);
      EXPECT_TRUE(found != rest.at_start.end() && at::equal(found->second, tensors.find(name)->read())) << name;
    }
    const bool has_all = !job.model.checkpoint_only_trainable_parameters;
    EXPECT_TRUE(!has_all || rest.at_start.size() == tensors.names.size());
    return rest;
  }
};

void expect_bit_equal(const Trained& actual, const Trained& expected) {
  EXPECT_EQ(series_of(actual), series_of(expected));
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size());
  for (const auto& [name, values] : expected.parameters) {
    EXPECT_TRUE(at::equal(actual.parameters.at(name), values)) << name;
  }
}

std::vector<PipelineJob> layouts() {
  const FsdpConfig once{.reshard_after_forward = ReshardAfterForward::kNever, .reduce_on_last_microbatch = true};
  return {
      {},
      {.mesh = {.data_parallel_shard = 2}},
      {.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}},
      {.mesh = {.pipeline_parallel = 4}, .schedule = GPipeScheduleConfig{}},
      {.mesh = {.pipeline_parallel = 2}, .schedule = LoopedBfsScheduleConfig{.num_stages_per_rank = 2}},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2}, .schedule = DualPipeVScheduleConfig{}, .fsdp = once},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_replicate = 2}, .schedule = ZeroBubbleVScheduleConfig{}}};
}

TEST_F(PipelineResume, On_the_same_stages_continues_bit_for_bit) {
  for (const PipelineJob& job : layouts()) {
    SCOPED_TRACE(cat(schedule_of(job.schedule).name, " on ", job.mesh.world_size()));
    const Trained whole = save(job);
    const Trained rest = resume(job);
    expect_bit_equal(rest, since(whole, kSaved));
    EXPECT_EQ(rest.num_resumed, kSaved * pipeline::kNumMicrobatches);
    EXPECT_EQ(rest.num_losses, (kSteps - kSaved) * pipeline::kNumMicrobatches);
  }
}

TEST_F(PipelineResume, On_other_stages_continues_as_one_piece_would) {
  const Trained whole = since(train({.num_steps = kSteps}), kSaved);
  const std::vector<PipelineJob> all = layouts();
  test::Turns turns(2);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const PipelineJob& from = all[i];
    (void)save(from);
    for (const std::size_t distance : {1, 2, 3}) {
      if (!turns.has_next()) continue;
      const PipelineJob& to = all[(i + distance) % all.size()];
      SCOPED_TRACE(cat("from ", schedule_of(from.schedule).name, " on ", from.mesh.world_size(), " to ",
                       schedule_of(to.schedule).name, " on ", to.mesh.world_size()));
      const Trained rest = resume(to);
      expect_same(rest, whole);
      EXPECT_EQ(rest.num_resumed, kSaved * pipeline::kNumMicrobatches);
    }
  }
}

TEST_F(PipelineResume, Of_stages_with_experts_continues_as_one_piece_would) {
  const std::vector<PipelineJob> jobs = {
      {.has_experts = true},
      {.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2, .expert_parallel = 2},
       .schedule = ZeroBubbleVScheduleConfig{},
       .has_experts = true},
      {.mesh = {.pipeline_parallel = 4, .data_parallel_replicate = 2, .expert_parallel = 2},
       .schedule = OneFOneBScheduleConfig{},
       .has_experts = true}};
  const Trained whole = since(train({.has_experts = true, .num_steps = kSteps}), kSaved);
  test::Turns turns(2);
  for (const PipelineJob& from : jobs) {
    (void)save(from);
    for (const PipelineJob& to : jobs) {
      if (turns.has_next()) expect_same(resume(to), whole);
    }
  }
}

// Tensor, context and expert parallelism by themselves. A job continues on its own layout and on the next of the list.
TEST_F(PipelineResume, Of_parts_of_layers_and_sequences_continues_as_one_rank_would) {
  const std::vector<PipelineJob> dense = {
      {.mesh = {.tensor_parallel = 2}},
      {.mesh = {.context_parallel_shard = 2}},
      {},
      {.mesh = {.context_parallel_replicate = 2}},
      {.mesh = {.pipeline_parallel = 2, .tensor_parallel = 2}, .schedule = OneFOneBScheduleConfig{}}};
  const std::vector<PipelineJob> experts = {{.mesh = {.data_parallel_replicate = 2, .expert_parallel = 2}},
                                            {.mesh = {.context_parallel_shard = 2, .expert_parallel = 2}},
                                            {},
                                            {.mesh = {.data_parallel_shard = 4, .expert_parallel = 4}}};
  test::Turns turns(3);
  for (const bool has_experts : {false, true}) {
    std::vector<PipelineJob> jobs = has_experts ? experts : dense;
    for (PipelineJob& job : jobs) job.has_experts = has_experts;
    const Trained whole = since(train({.has_experts = has_experts, .num_steps = kSteps}), kSaved);
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      if (!turns.has_next()) continue;
      const Trained uninterrupted = since(save(jobs[i]), kSaved);
      SCOPED_TRACE(cat("experts ", has_experts, ", from ", i));
      expect_bit_equal(resume(jobs[i]), uninterrupted);
      expect_same(resume(jobs[(i + 1) % jobs.size()]), whole);
    }
  }
}

TEST_F(PipelineResume, Over_sockets_continues_as_one_piece_would) {
  const PipelineJob job{.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                        .schedule = DualPipeVScheduleConfig{},
                        .backend = RankBackend::kGloo};
  const Trained whole = save(job);
  expect_bit_equal(resume(job), since(whole, kSaved));
}

TEST_F(PipelineResume, Continues_sums_since_they_were_logged) {
  const Trained whole = since(train({.num_steps = kSteps, .log_period = 2}), kSaved);
  const std::vector<PipelineJob> jobs = {
      {.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}, .log_period = 2},
      {.mesh = {.pipeline_parallel = 4}, .schedule = OneFOneBScheduleConfig{}, .log_period = 2},
      {.mesh = {.data_parallel_replicate = 2, .context_parallel_replicate = 2}, .log_period = 2}};
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    SCOPED_TRACE(i);
    (void)save(jobs[i]);
    expect_same(resume(jobs[(i + 1) % jobs.size()]), whole);
  }
}

TEST_F(PipelineResume, With_a_frozen_stage_saves_the_others_alone) {
  PipelineJob job{.mesh = {.pipeline_parallel = 4}, .schedule = OneFOneBScheduleConfig{}, .freezes_first = true};
  job.model.checkpoint_only_trainable_parameters = true;
  const Trained whole = save(job);
  const std::vector<std::string> names = checkpoint_at(folder() / "kept").value().tensors("model.").names;
  EXPECT_THAT(names, Not(::testing::Contains(::testing::ContainsRegex("embed|layers\\.[01]\\."))));
  EXPECT_THAT(names, ::testing::Contains("model.layers.2.input_layernorm.weight"));
  expect_bit_equal(resume(job), since(whole, kSaved));
  for (const PipelineJob& to : layouts()) {
    PipelineJob other = to;
    other.freezes_first = true;
    other.model = job.model;
    expect_same(resume(other), since(whole, kSaved));
  }
  job.model.checkpoint_only_trainable_parameters = false;
  job.num_steps = kSteps;
  job.save_dir = "kept";
  EXPECT_THAT(error_of(job), HasSubstr("checkpoint_only_trainable_parameters = true, with which"));
}

TEST_F(PipelineResume, With_a_frozen_stage_takes_it_from_the_source_again) {
  std::vector<TensorSource> tensors;
  for (const auto& [name, tensor] : train({}).parameters) tensors.push_back(tensor_source(name, tensor));
  write_huggingface_directory(folder() / "source", nlohmann::json::object(), tensors);
  PipelineJob job{.mesh = {.pipeline_parallel = 4}, .schedule = OneFOneBScheduleConfig{}, .freezes_first = true};
  job.model = {.source_checkpoint = folder() / "source", .checkpoint_only_trainable_parameters = true};
  const Trained whole = save(job);
  expect_bit_equal(resume(job), since(whole, kSaved));
  job.mesh.pipeline_parallel = 2;
  job.schedule = DualPipeVScheduleConfig{};
  expect_same(resume(job), since(whole, kSaved));
  job.model.source_checkpoint.reset();
  job.num_steps = kSteps;
  job.save_dir = "kept";
  EXPECT_THAT(error_of(job), HasSubstr("expected trainer.model_stage_factory.source_checkpoint = "));
}

TEST_F(PipelineResume, Begins_with_the_weights_of_stages_of_another_job) {
  const PipelineJob saving{.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}};
  (void)save(saving);
  const SavedCheckpoint saved = checkpoint_at(folder() / "kept").value();
  const NamedTensors weights = saved.tensors("model.");
  for (const PipelineJob& to : layouts()) {
    PipelineJob job = to;
    job.num_steps = 1;
    job.model.source_checkpoint = folder() / "kept";
    const Trained begun = train(job);
    for (const std::string& name : weights.names) {
      EXPECT_TRUE(at::equal(begun.at_start.at("model." + name), weights.find(name)->read())) << name;
    }
    EXPECT_THAT(begun.log, Not(HasSubstr("ignored")));
  }
}

TEST_F(PipelineResume, Says_once_what_no_stage_takes_and_what_the_source_lacks) {
  std::vector<TensorSource> tensors = {tensor_source("left_over", at::ones({2}))};
  for (const auto& [name, tensor] : train({}).parameters) {
    if (!name.starts_with("model.layers.7.")) tensors.push_back(tensor_source(name, tensor));
  }
  write_huggingface_directory(folder() / "source", nlohmann::json::object(), tensors);
  PipelineJob job{.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}, .num_steps = 1};
  job.model = {.source_checkpoint = folder() / "source", .source_may_lack = "model\\.layers\\.7\\..*"};
  for (const std::int64_t num_ranks : {1, 2, 4}) {
    job.mesh.pipeline_parallel = num_ranks;
    const std::string log = train(job).log;
    const auto num_of = [&](const std::string& text) {
      std::int64_t count = 0;
      for (auto at = log.find(text); at != std::string::npos; at = log.find(text, at + 1)) ++count;
      return count;
    };
    EXPECT_EQ(num_of("ignored left_over of"), 1);
    EXPECT_EQ(num_of("ignored "), 1);
    EXPECT_EQ(num_of("initial values stay in model.layers.7.input_layernorm.weight"), 1);
  }
}

TEST_F(PipelineResume, Of_another_model_is_refused_on_all_ranks_with_one_line) {
  (void)save({.mesh = {.pipeline_parallel = 2}, .schedule = OneFOneBScheduleConfig{}});
  PipelineJob other{.mesh = {.pipeline_parallel = 4}, .schedule = OneFOneBScheduleConfig{}, .has_experts = true};
  other.save_dir = "kept";
  other.num_steps = kSteps;
  EXPECT_THAT(error_of(other), HasSubstr("expected the tensors of this job in"));
  EXPECT_THAT(error_of(other), HasSubstr("it lacks model.model.layers.0.mlp."));
}

PeftConfig lora(const std::string& pattern) {
  return LoraConfig{.module_name_pattern = pattern, .params = {.r = 2, .alpha = 4.0}};
}

TEST_F(PipelineResume, With_adapters_saves_them_alone_and_continues_on_other_layouts) {
  const PeftConfig dora = DoraConfig{.module_name_pattern = ".*_proj", .params = {.r = 2, .alpha = 4.0}};
  for (const auto& [method, has_experts] :
       {std::pair(lora(".*_proj"), false), std::pair(lora(".*_proj"), true), std::pair(dora, false)}) {
    SCOPED_TRACE(cat("experts ", has_experts, ", kind ", method.index()));
    std::vector<TensorSource> tensors;
    for (const auto& [name, tensor] : train({.has_experts = has_experts, .num_steps = 1}).parameters) {
      tensors.push_back(tensor_source(name, tensor));
    }
    fs::remove_all(folder() / "source");
    write_huggingface_directory(folder() / "source", nlohmann::json::object(), tensors);
    PipelineJob job{.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2},
                    .schedule = OneFOneBScheduleConfig{},
                    .has_experts = has_experts,
                    .adapters = method};
    job.model = {.source_checkpoint = folder() / "source", .checkpoint_only_trainable_parameters = true};
    const Trained whole = save(job);
    for (const std::string& name : checkpoint_at(folder() / "kept").value().tensors("model.").names) {
      EXPECT_TRUE(is_adapter_parameter(name)) << name;
    }
    PipelineJob next{.has_experts = has_experts, .adapters = method};
    next.model.source_checkpoint = folder() / "kept";
    EXPECT_THAT(error_of(next), HasSubstr("its job saves what it trains alone"));
    for (const TensorSource& tensor : tensors) {  // the frozen ones are the source's
      EXPECT_TRUE(at::equal(whole.parameters.at(tensor.name), tensor.read())) << tensor.name;
    }
    expect_bit_equal(resume(job), since(whole, kSaved));
    for (const PipelineJob& layout :
         {PipelineJob{}, PipelineJob{.mesh = {.tensor_parallel = has_experts ? 1 : 2}},
          PipelineJob{.mesh = {.data_parallel_shard = 2, .expert_parallel = has_experts ? 2 : 1}},
          PipelineJob{.mesh = {.pipeline_parallel = 2}, .schedule = ZeroBubbleVScheduleConfig{}}}) {
      PipelineJob other = job;
      other.mesh = layout.mesh;
      other.schedule = layout.schedule;
      expect_same(resume(other), since(whole, kSaved));
    }
  }
}

TEST_F(PipelineResume, With_adapters_exports_merged_weights_by_default) {
  for (const std::int64_t num_stages : {1, 2}) {  // of the one rank
    SCOPED_TRACE(num_stages);
    PipelineJob job{.adapters = lora(".*\\.[qk]_proj")};
    job.schedule = OneFOneBScheduleConfig{.num_stages_per_rank = num_stages};
    job.export_to = "export";
    const Trained trained = train(job);
    const HuggingFaceDirectory exported(folder() / "export");
    for (const auto& [name, tensor] : trained.parameters) {
      EXPECT_EQ(exported.find(name).has_value(), !is_adapter_parameter(name)) << name;
      const std::string module = name.substr(0, name.rfind('.'));
      if (is_adapter_parameter(name) || !trained.parameters.contains(module + ".lora_A.weight")) continue;
      const at::Tensor term =
          trained.parameters.at(module + ".lora_B.weight").matmul(trained.parameters.at(module + ".lora_A.weight"));
      EXPECT_TRUE(at::allclose(exported.find(name)->read(), tensor + 2.0 * term, 1e-12, 1e-12)) << name;
      EXPECT_GT(term.abs().max().item<double>(), 0.0) << name;
    }
  }
}

TEST_F(PipelineResume, Adapters_of_one_stage_train_as_in_one_piece) {
  for (const char* const pattern : {".*\\.layers\\.0\\..*_proj", ".*\\.layers\\.7\\..*_proj"}) {
    SCOPED_TRACE(pattern);
    const PipelineJob job{
        .mesh = {.pipeline_parallel = 4}, .schedule = OneFOneBScheduleConfig{}, .adapters = lora(pattern)};
    expect_same(train(job), train({.adapters = lora(pattern)}));
  }
}

// The first stage does not see the head, and the last looks nothing up.
TEST_F(PipelineResume, Adapters_beside_tied_weights_train_as_in_one_piece) {
  const PeftConfig all = FullTuneConfig{.module_name_pattern = ""};
  for (const char* const pattern : {"head", "model\\.embed_tokens"}) {
    SCOPED_TRACE(pattern);
    PipelineJob job{.ties_embeddings = true, .adapters = StackConfig{.methods = {lora(pattern), all}}};
    const Trained expected = train(job);
    job.mesh = {.pipeline_parallel = 2, .data_parallel_shard = 2};
    job.schedule = OneFOneBScheduleConfig{};
    expect_same(train(job), expected);
  }
}

TEST_F(PipelineResume, Adapters_that_no_stage_has_are_refused) {
  for (const std::int64_t num_stages : {1, 4}) {
    const PipelineJob job{.mesh = {.pipeline_parallel = num_stages},
                          .schedule = OneFOneBScheduleConfig{},
                          .adapters = lora("attention\\.q_proj")};
    EXPECT_THAT(error_of(job), ::testing::AllOf(HasSubstr("'attention\\.q_proj'"), HasSubstr("self_attn.q_proj")));
  }
}

}  // namespace
}  // namespace d9d::test::pipeline_resume_test
