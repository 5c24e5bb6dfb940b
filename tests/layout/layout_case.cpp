#include "tests/layout/layout_case.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/philox.h"
#include "d9d/blocks/linear/low_rank_adapter.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/loop/checkpoint/job_state.h"
#include "d9d/loop/checks/equal_microbatches.h"
#include "d9d/loop/run/job_sleep.h"
#include "d9d/loop/step/gradient_manager.h"
#include "d9d/loop/step/local_stages.h"
#include "d9d/loop/task/trainable_parameters.h"
#include "d9d/modules/mixed_precision.h"
#include "d9d/optim/build_optimizer.h"
#include "d9d/optim/ema.h"
#include "d9d/parallelism/context/parallelize_context_parallel.h"
#include "d9d/peft/magnitudes.h"
#include "d9d/pipelining/executor/pipeline_executor.h"
#include "d9d/pipelining/schedules/pipeline_schedule.h"

#include "tests/layout/assembler.h"
#include "tests/layout/layout_loss.h"
#include "tests/layout/layout_model.h"
#include "tests/layout/layout_stage.h"
#include "tests/support/compare.h"

namespace d9d::test {
namespace {

constexpr double kMaxNorm = 0.5;

// The steps [begin, end) of a job. Those before begin are in the folder as a checkpoint; it gets one at the end, unless
// that is the job's.
struct Part {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::filesystem::path folder = {};
};

// What is planted in a training.
struct Fault {
  Mutation mutation = Mutation::kNone;
  const PlanMutation* plan = nullptr;
};

// The results that all ranks write to.
struct Shared {
  std::mutex mutex;
  LayoutResult result;
  Assembler gradients;
  Assembler parameters;
  Assembler averages;
};

class RankJob {
 public:
  RankJob(const DistContext& context, const LayoutJob& job, const Layout& layout, const Fault& fault,
          PhaseOfRank& phase)
      : context_(context), job_(job), layout_(layout), mutation_(fault.mutation), plan_(fault.plan), phase_(phase) {
    const StagePlacement placement = schedule_of(config_of(layout.schedule)).placement(layout.mesh.pipeline_parallel);
    for (const StageIndex index : placement.stages_of(context.mesh(MeshDomain::kRegular).axis_coordinate("pp"))) {
      models_.push_back(make_stage({.num_stages = placement.num_stages(), .current_stage = index.value}));
      stages_.push_back(models_.back().shared());
    }
    module_ = local_stages(stages_);
    clock_->num_ranks = positions_and_slices().num_ranks();
    module_->set_random_clock(clock_);
    if (job.starves_experts) starve_experts();
  }

  void train(Shared& shared, const Part& part) {
    std::optional<GradientManager> manager;
    const GradientManagerConfig config{.grad_dtype = layout_.grad_dtype, .bucket_size_mb = layout_.bucket_size_mb};
    renew(manager, config);
    Optimizer optimizer = make_optimizer();
    OffloadHooks work([&] {
      manager->close();
      if (executor_) executor_->close();
    });
    const auto membership = offloads_.add(work, {SleepTag::kTensorStates, SleepTag::kComms});
    EqualMicrobatches equal_microbatches(context_, *module_);
    if (mutation_ == Mutation::kUnequalUnseen) context_.set_timeout(std::chrono::seconds(1));  // ranks wait for ever
    const DeviceMesh& all = context_.mesh(MeshDomain::kBatch);
    std::optional<Ema> ema;
    if (job_.has_averages) ema.emplace(trainable_parameters(*module_).parameters, EmaConfig{.decay = 0.5});
    CheckpointState state{.tensors = tensors_of(*module_, optimizer)};
    for (const auto& [name, tensor] : averages_of(ema)) state.tensors.emplace(kEmaPrefix + name, tensor);
    if (part.begin > 0) CheckpointDirectory(part.folder, all).newest().value().load(state, all);
    for (std::int64_t step = part.begin; step < part.end; ++step) {
      if (mutation_ != Mutation::kUnequalUnseen) equal_microbatches.check(step, share());
      if (job_.freezes_late && step + 1 == job_.num_steps && mutation_ != Mutation::kFreezingUnseen) freeze_late();
      if (layout_.abandons) abandon_microbatch(*manager, step);
      const StepTotals report = run_step(*manager, step);
      add_gradients(shared.gradients, cat("step ", step, " "));
      if (context_.is_main_process()) {
        shared.result.losses.push_back(report.loss);
        shared.result.norms.push_back(report.norm);
        for (const auto& [name, norm] : report.layer_norms) {
          shared.result.layer_norms[cat("step ", step, " ", name)] = at::scalar_tensor(norm, at::kDouble);
        }
      }
      if (report.is_usable) {
        const double clip = std::min(1.0, kMaxNorm / report.norm);
        optimizer.step(optimizer.learning_rate(), at::scalar_tensor(clip, at::kDouble));
        if (ema) update(*ema, step);
      }
      phase_.begin(Phase::kFinish);
      module_->finish_step(report.is_usable ? StepOutcome::kUpdated : StepOutcome::kSkipped);
      manager->reset();
      if (layout_.renews_manager) renew(manager, config);
      if (!layout_.sleeps.empty()) sleep_and_wake(ema);
    }
    if (part.end < job_.num_steps) CheckpointDirectory(part.folder, all).save(part.end, state, {});
    for (const auto& [name, parameter] : module_->named_parameters()) shared.parameters.add(name, parameter->dtensor());
    for (const auto& [name, tensor] : averages_of(ema)) {
      if (tensor.local.is_floating_point()) shared.averages.add(name, tensor);  // not the count
    }
    auto whole = module_->full_state_dict();
    manager->close();
    const std::lock_guard lock(shared.mutex);
    shared.result.buffers.merge(whole);
  }

 private:
  ModulePtr<LayoutModel> make_stage(const PipelineStageInfo& stage) const {
    auto model = make_layout_model(job_, layout_.checkpoints, stage);
    if (layout_.keeps_master_weights) keep_master_weights(model);
    parallelize(context_, *model, layout_);
    mutate_placements(*model, mutation_);
    mutate_blocks(*model, mutation_, phase_.context_parallel_ranks.back() == context_.rank());
    if (plan_ != nullptr) mutate_plan(*model, *plan_);
    model->materialize(at::kCPU);
    model->reset_parameters(/*base_seed=*/11);
    begin_magnitudes(*model);
    if (mutation_ == Mutation::kAdapterSeed && context_.rank() == context_.world_size() - 1) {
      for (const auto& [name, parameter] : model->named_parameters()) {
        if (is_adapter_parameter(name)) parameter->reset({.key = philox_key(/*seed=*/12, "init", name)});
      }
    }
    return model;
  }

  [[nodiscard]] Optimizer make_optimizer() const {
    const bool is_mutated = mutation_ == Mutation::kGroupsUnseen && context_.rank() == context_.world_size() - 1;
    return build_optimizer(optimizer_of(job_, /*with_groups=*/!is_mutated), trainable_parameters(*module_).parameters);
  }

  void renew(std::optional<GradientManager>& manager, const GradientManagerConfig& config) const {
    manager.reset();
    manager.emplace(context_, *module_, config, GradientClippingConfig{}, GradientMemory::kOfStep, stages_);
  }

  static std::map<std::string, DTensor> averages_of(const std::optional<Ema>& ema) {
    return ema ? ema->state_dict() : std::map<std::string, DTensor>();
  }

  void update(Ema& ema, std::int64_t step) const {
    const bool is_last = context_.rank() == context_.world_size() - 1;
    if (mutation_ != Mutation::kAveragesStale || step > 0 || !is_last) ema.update();
    const AveragedWeights averaged(ema);
  }

  void sleep_and_wake(const std::optional<Ema>& ema) {
    const auto around = [](const SleepTags&, const std::function<void()>& body) { body(); };
    const TimeoutConfig timeout;
    JobSleep sleep(context_, offloads_, stages_, timeout);
    sleep.add_stages();
    if (ema) sleep.add_averages(*ema);
    sleep.sleep(layout_.sleeps, around);
    sleep.wake(layout_.sleeps, around);
    if (mutation_ == Mutation::kLostAsleep && context_.is_main_process()) {
      const at::NoGradGuard no_grad;
      for (const auto& [name, parameter] : module_->named_parameters()) parameter->stored().zero_();
    }
  }

  DeviceMesh context_ranks() const { return context_.mesh(MeshDomain::kBatch).slice({"cp"}); }
  DeviceMesh positions_and_slices() const { return context_.mesh(MeshDomain::kBatch).slice({"cp", "tp"}); }

  // In float64 also where layers compute in it: then the numbers are exactly those without.
  static void keep_master_weights(const ModulePtr<LayoutModel>& model) {
    for (const auto& [name, parameter] : model->named_parameters()) {
      if (parameter->requires_grad()) parameter->set_stored_dtype(at::kDouble);
    }
    keep_parameters_in(model.shared(), at::kDouble);
  }

  void freeze_late() const {
    const ParameterPtr parameter = module_->named_parameters().front().second;
    parameter->set_requires_grad(!parameter->requires_grad());
  }

  void starve_experts() const {
    for (const auto& [name, buffer] : module_->named_buffers()) {
      if (name.ends_with("expert_bias")) buffer->local.narrow(0, 0, 2).fill_(10.0);
    }
  }

  void add_gradients(Assembler& gradients, const std::string& prefix) const {
    for (const auto& [name, parameter] : module_->named_parameters()) {
      DTensor part = parameter->dtensor();
      part.local = parameter->stored().grad();
      if (part.local.defined()) gradients.add(prefix + name, part);
    }
  }

  // The number, among all microbatches of the step, of microbatch i of this rank, depending on their distribution.
  [[nodiscard]] std::int64_t number_in_step(std::int64_t i) const {
    const std::int64_t rank = context_.data_parallel_rank();
    if (layout_.deals_in_turn && layout_.deal == Deal::kEqual) return i * context_.data_parallel_size() + rank;
    std::int64_t begin = 0;
    for (std::int64_t before = 0; before < rank; ++before) begin += num_microbatches(job_, layout_, before);
    return begin + i;
  }

  // The number of this rank's microbatches in a step.
  [[nodiscard]] std::int64_t share() const {
    const std::int64_t last = context_.data_parallel_size() - 1;
    const bool is_cut = mutation_ == Mutation::kUnequalCut;
    return num_microbatches(job_, layout_, is_cut ? last : context_.data_parallel_rank());
  }

  // Makes the i-th of this rank's microbatches the one that the model computes next. Returns its number, counted over
  // the job.
  std::int64_t begin_microbatch(LayoutModel& model, std::int64_t step, std::int64_t i) {
    const std::int64_t number = number_in_step(i);
    clock_->base_seed = mutation_ == Mutation::kSeedOfRank ? 3 + static_cast<std::uint64_t>(context_.rank()) : 3;
    clock_->microbatch = {.step = static_cast<std::uint64_t>(step),
                          .number = static_cast<std::uint64_t>(mutation_ == Mutation::kLocalMicrobatch ? i : number)};
    model.begin_microbatch(step, number);
    phase_.begin(Phase::kForward);
    return step * job_.num_microbatches + number;
  }

  // The forward of a model in one piece.
  LayoutLoss forward(std::int64_t step, std::int64_t i) {
    const ModulePtr<LayoutModel>& model = models_.front();
    return microbatch_loss(model, job_, step, begin_microbatch(*model, step, i), rows_);
  }

  void run_stages(GradientManager& manager, std::int64_t step) {
    const StageStep shared{
        .step = step,
        .gradients = &manager,
        .phase = &phase_,
        .mutation = mutation_,
        .begin = [&](LayoutModel& model, std::int64_t i) { return begin_microbatch(model, step, i); },
        .number = [&](std::int64_t i) { return step * job_.num_microbatches + number_in_step(i); }};
    std::vector<LayoutStage> stages;
    for (const auto& model : models_) stages.emplace_back(model, stages.size(), job_, rows_, shared);
    std::vector<PipelineStage*> all;
    for (LayoutStage& stage : stages) all.push_back(&stage);
    // A stale message is one of exchange().
    const auto method = mutation_ == Mutation::kMessageStale ? ExchangeMethod::kCommunicator : ExchangeMethod::kAuto;
    if (!executor_) {
      executor_.emplace(context_, schedule_of(config_of(layout_.schedule)), StageLinksConfig{.method = method});
    }
    executor_->run(all, share());
  }

  void abandon_microbatch(GradientManager& manager, std::int64_t step) {
    manager.begin_microbatch(/*is_last=*/false);
    {
      const auto [loss, weight] = forward(step, 0);
      manager.add_loss_with_weight(loss, weight);
      if (step > 0) (loss * weight).backward();
    }
    manager.abandon();
  }

  StepTotals run_step(GradientManager& manager, std::int64_t step) {
    if (num_stages(layout_) > 1) {
      run_stages(manager, step);
      phase_.begin(Phase::kSum);
      return manager.reduce_and_clip({.num_tokens = 1, .measures_layers = true});
    }
    for (std::int64_t i = 0; i < share(); ++i) {
      manager.begin_microbatch(/*is_last=*/i + 1 == share());
      const auto [loss, weight] = forward(step, i);
      manager.add_loss_with_weight(loss, weight);
      phase_.begin(Phase::kBackward);
      (loss * weight).backward();
      manager.end_microbatch();
    }
    phase_.begin(Phase::kSum);
    return manager.reduce_and_clip({.num_tokens = 1, .measures_layers = true});
  }

  const DistContext& context_;
  const LayoutJob& job_;
  const Layout& layout_;
  const Mutation mutation_;
  const PlanMutation* const plan_;  // borrowed; null: none
  PhaseOfRank& phase_;
  const RandomClockPtr clock_ = std::make_shared<RandomClock>();
  const Rows rows_ = {.positions = context_parallel_cut(context_ranks()),
                      .position_divisor = layout_.mesh.position_divisor(),
                      .are_padded = layout_.pads,
                      .mutation = mutation_};
  std::vector<ModulePtr<LayoutModel>> models_;   // of the rank's stages
  std::vector<std::shared_ptr<Module>> stages_;  // the same
  OffloadList offloads_;
  std::shared_ptr<Module> module_;  // of all of them
  std::optional<PipelineExecutor> executor_;
};

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::map<std::string, at::Tensor> in_double(std::map<std::string, at::Tensor> tensors) {
  for (auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point()) tensor = tensor.to(at::kDouble);
  }
  return tensors;
}

void note(std::vector<std::string>& faults, const std::string& fault) {
  if (!fault.empty()) faults.push_back(fault);
}

LayoutResult train_part(const Layout& layout, const LayoutJob& job, const Part& part, RankBackend backend,
                        const Fault& fault) {
  Shared shared;
  run_ranks(backend, layout.mesh.world_size(), [&](World& world) {
    PhaseOfRank phase;
    const DistContext context(
        {.mesh = layout.mesh,
         .world = fault.mutation == Mutation::kNone ? borrowed(world) : mutated(world, fault.mutation, phase),
         .local_rank = world.rank(),
         .log_sink = [](std::string_view) {}});
    phase.tensor_parallel_ranks = context.mesh(MeshDomain::kDense).slice({"tp"}).ranks();
    phase.context_parallel_ranks = context.mesh(MeshDomain::kBatch).slice({"cp"}).ranks();
    RankJob(context, job, layout, fault, phase).train(shared, part);
  });
  LayoutResult result = std::move(shared.result);
  result.gradients = shared.gradients.take();
  result.parameters = shared.parameters.take();
  result.averages = shared.averages.take();
  for (const Assembler* each : {&shared.gradients, &shared.parameters, &shared.averages}) {
    result.faults.insert(result.faults.end(), each->faults().begin(), each->faults().end());
  }
  for (const auto& [name, whole] : result.parameters) {
    const auto gathered = result.buffers.extract(name);
    if (gathered.empty() || !at::equal(gathered.mapped(), whole)) {
      result.faults.push_back(name + " is another when ranks gather it");
    }
  }
  return result;
}

}  // namespace

LayoutResult train(const Layout& layout, const LayoutJob& job, RankBackend backend, Mutation mutation) {
  return train_part(layout, job, {.begin = 0, .end = job.num_steps}, backend, {.mutation = mutation});
}

LayoutResult train(const LayoutCase& drawn, Mutation mutation) {
  const auto& [job, layout, resumes_at, rest] = drawn;
  if (resumes_at == 0 || resumes_at >= job.num_steps) return train(layout, job, RankBackend::kThreads, mutation);
  static std::atomic<int> num_folders = 0;
  const auto folder = std::filesystem::path(::testing::TempDir()) / cat("d9d_resume_", ::getpid(), "_", ++num_folders);
  const Part first{.begin = 0, .end = resumes_at, .folder = folder};
  const Part second{.begin = resumes_at, .end = job.num_steps, .folder = folder};
  const LayoutResult begun = train_part(layout, job, first, RankBackend::kThreads, {.mutation = mutation});
  LayoutResult result = train_part(rest, job, second, RankBackend::kThreads, {.mutation = mutation});
  std::filesystem::remove_all(folder);
  result.losses.insert(result.losses.begin(), begun.losses.begin(), begun.losses.end());
  result.norms.insert(result.norms.begin(), begun.norms.begin(), begun.norms.end());
  result.layer_norms.insert(begun.layer_norms.begin(), begun.layer_norms.end());
  result.gradients.insert(begun.gradients.begin(), begun.gradients.end());
  result.faults.insert(result.faults.begin(), begun.faults.begin(), begun.faults.end());
  return result;
}

LayoutResult train(const LayoutCase& drawn, const PlanMutation& mutation) {
  return train_part(drawn.layout, drawn.job, {.begin = 0, .end = drawn.job.num_steps}, RankBackend::kThreads,
                    {.plan = &mutation});
}

std::string difference(const LayoutResult& actual, const LayoutResult& expected, const Tolerance& tolerance) {
  const auto as_tensor = [](const std::vector<double>& values) { return at::tensor(values, at::kDouble); };
  std::vector<std::string> faults = actual.faults;
  note(faults, difference("losses", as_tensor(actual.losses), as_tensor(expected.losses), tolerance));
  note(faults, difference("norms", as_tensor(actual.norms), as_tensor(expected.norms), tolerance));
  note(faults, difference(actual.layer_norms, expected.layer_norms, tolerance));
  note(faults, difference(in_double(actual.gradients), in_double(expected.gradients), tolerance));
  note(faults, difference(in_double(actual.parameters), in_double(expected.parameters), tolerance));
  note(faults, difference(in_double(actual.averages), in_double(expected.averages), tolerance));
  note(faults, difference(in_double(actual.buffers), in_double(expected.buffers), tolerance));
  std::string text;
  for (const std::string& fault : faults) text += cat(text.empty() ? "" : "\n", fault);
  return text;
}

void expect_same(const LayoutResult& actual, const LayoutResult& expected, const Tolerance& tolerance) {
  const std::string text = difference(actual, expected, tolerance);
  EXPECT_TRUE(text.empty()) << text;
}

namespace {

// What a training that must be refused says instead; empty: the right refusal.
std::string fault_of_refusal(const std::string& due, const std::function<void()>& train_it) {
  try {
    train_it();
  } catch (const Error& error) {
    const std::string text = error.what();
    return text.find(due) != std::string::npos ? "" : first_line(text);
  }
  return cat("expected a refusal that names ", due, ", got a training");
}

}  // namespace

LayoutResult on_one_rank(const LayoutJob& job) {
  constexpr std::size_t kMaxResults = 64;
  static std::map<std::string, LayoutResult> results;
  if (results.size() == kMaxResults) results.clear();
  const std::string key = to_source({.job = job});
  if (const auto found = results.find(key); found != results.end()) return found->second;
  return results.emplace(key, train({}, job)).first->second;
}

std::string fault_of(const LayoutCase& drawn, Mutation mutation) {
  if (const auto due = refusal(drawn)) {
    const bool is_of_refusals = mutation == Mutation::kFreezingUnseen || mutation == Mutation::kUnequalUnseen;
    if (mutation != Mutation::kNone && !is_of_refusals) return "";
    const std::string fault = fault_of_refusal(*due, [&] { (void)train(drawn, mutation); });
    if (!fault.empty() || !drawn.job.freezes_late) return fault;
    return fault_of_refusal("expected requires_grad",
                            [&] { (void)train({}, drawn.job, RankBackend::kThreads, mutation); });
  }
  try {
    const LayoutResult actual = train(drawn, mutation);
    return difference(actual, on_one_rank(drawn.job), tolerance(is_rounded_to_float(drawn) ? "fp32" : "fp64"));
  } catch (const std::exception& error) {
    if (mutation != Mutation::kNone && mutation != Mutation::kAnnouncedDtype) throw;
    return first_line(error.what());
  }
}

}  // namespace d9d::test
