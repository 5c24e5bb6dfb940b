#include "d9d/loop/job/model_builder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/blocks/linear/linear.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"
#include "d9d/parallelism/replicate/parallelize_replicate.h"

#include "tests/loop/run/toy_job.h"
#include "tests/support/io_faults.h"
#include "tests/support/ranks.h"

namespace d9d::model_builder_test {
namespace {

using ::testing::ThrowsMessage;

struct TwoLinears : Module {
  const ModulePtr<Linear> first = register_module<Linear>("first", LinearConfig{2, 3});
  const ModulePtr<Linear> second = register_module<Linear>("second", LinearConfig{3, 1});
};

std::unique_ptr<DistContext> context_of(std::int64_t num_ranks) {
  return std::make_unique<DistContext>(
      DistContextConfig{.mesh = {.data_parallel_replicate = num_ranks}, .world = test::lone_rank(0, num_ranks)});
}

TEST(ModelStageFactory, Names_a_parameter_that_nobody_placed_on_one_rank_too) {
  for (const std::int64_t num_ranks : {1, 2}) {
    const auto context = context_of(num_ranks);
    const auto model = make_module<TwoLinears>();
    parallelize_replicate(*model->first, context->mesh(MeshDomain::kDense), dense_data_axes());
    EXPECT_THAT([&] { check_layouts(*context, *model); },
                ThrowsMessage<StateError>(cat("[loop::model_stage] expected a layout over the mesh of the ", num_ranks,
                                              " ranks for every parameter, got none for second.weight. Give it one in "
                                              "ModelProvider::parallelize_model_stage.")));
    parallelize_replicate(*model, context->mesh(MeshDomain::kDense), dense_data_axes());
    EXPECT_NO_THROW(check_layouts(*context, *model));
  }
}

TEST(ModelStageFactory, A_trainer_on_one_rank_has_every_parameter_on_a_mesh_of_ones) {
  toy::Job job({{toy::samples(0, 1)}});
  const auto trainer = job.make_trainer();
  for (const auto& [name, parameter] : trainer.module().named_parameters()) {
    EXPECT_EQ(parameter->mesh(), job.context.mesh(MeshDomain::kDense)) << name;
    EXPECT_EQ(parameter->placements().size(), 5U) << name;
    EXPECT_EQ(parameter->mesh().num_ranks(), 1) << name;
  }
}

struct ForgetfulProvider : toy::Provider {
  void parallelize_model_stage(const DistContext&, const PipelineStageInfo&, Module&) override {}
};

TEST(ModelStageFactory, A_trainer_on_one_rank_refuses_a_provider_that_places_nothing) {
  toy::Job job({{toy::samples(0, 1)}});
  ForgetfulProvider provider;
  provider.packs = job.provider.packs;
  EXPECT_THAT(
      [&] {
        Trainer<toy::Types>(job.context, job.config,
                            {.task = job.task,
                             .model = provider,
                             .data = provider,
                             .optimizer = *job.optimizer,
                             .lr_scheduler = job.lr_scheduler});
      },
      ThrowsMessage<StateError>(::testing::HasSubstr("got none for first.weight")));
}

// Writes a folder with the given parameters of a toy model.
std::filesystem::path write_folder(const std::vector<std::string>& names) {
  const auto model = make_module<toy::Model>();
  model->materialize(at::kCPU);
  model->reset_parameters(77);
  std::vector<TensorSource> tensors;
  for (const std::string& name : names) tensors.push_back(tensor_source(name, model->state_dict().at(name)));
  const std::filesystem::path path = test::fresh_directory("d") / "published";
  write_huggingface_directory(path, nlohmann::json::object(), tensors);
  return path;
}

TEST(ModelStageFactory, Starts_a_new_head_on_a_published_backbone) {
  toy::Job job({{toy::samples(0, 1)}});
  std::vector<std::string> names;
  for (const auto& [name, parameter] : job.make_trainer().module().named_parameters()) names.push_back(name);
  const std::string head = names.back();
  names.pop_back();
  const auto folder = write_folder(names);
  const auto initial = job.make_trainer().module().state_dict();

  job.config.model_stage_factory.source_checkpoint = folder;
  EXPECT_THAT([&] { (void)job.make_trainer(); }, ThrowsMessage<StateError>(::testing::HasSubstr("'" + head + "'")));
  job.config.model_stage_factory.source_may_lack = "second\\..*";
  const auto state = job.make_trainer().module().state_dict();
  const HuggingFaceDirectory published(folder);
  for (const std::string& name : names) {
    EXPECT_TRUE(at::equal(state.at(name), published.find(name)->read().to(state.at(name).scalar_type()))) << name;
  }
  EXPECT_TRUE(at::equal(state.at(head), initial.at(head)));
}

// Doubles all values. A model family may need such a conversion although the folder has the names of the model: for
// rotary rows in another order, or for a norm that is applied as 1 + w.
struct DoublingProvider : toy::Provider {
  StateMapper map_source_checkpoint(const HuggingFaceDirectory& source, const Module&) override {
    std::vector<StateMapper> doubled;
    for (const std::string& name : source.names()) {
      doubled.push_back(
          mapper::function("double", {name}, {name}, [](const auto& x) { return std::vector<at::Tensor>{x[0] * 2}; }));
    }
    return mapper::parallel(std::move(doubled));
  }
};

TEST(ModelStageFactory, Applies_the_mapper_of_a_provider_where_the_folder_has_the_models_names_too) {
  toy::Job job({{toy::samples(0, 1)}});
  std::vector<std::string> names;
  for (const auto& [name, parameter] : job.make_trainer().module().named_parameters()) names.push_back(name);
  const auto folder = write_folder(names);
  job.config.model_stage_factory.source_checkpoint = folder;
  DoublingProvider provider;
  provider.packs = job.provider.packs;
  const Trainer<toy::Types> trainer(job.context, job.config,
                                    {.task = job.task,
                                     .model = provider,
                                     .data = provider,
                                     .optimizer = *job.optimizer,
                                     .lr_scheduler = job.lr_scheduler});
  const HuggingFaceDirectory published(folder);
  const auto state = trainer.module().state_dict();
  for (const std::string& name : names) {
    EXPECT_TRUE(at::equal(state.at(name), published.find(name)->read().to(at::kDouble) * 2)) << name;
  }
}

TEST(ModelStageFactory, Computes_the_magnitudes_that_a_source_lacks_from_its_weights) {
  const std::string of_first = "first.lora_magnitude_vector.weight", of_second = "second.lora_magnitude_vector.weight";
  toy::Job job({{toy::samples(0, 1)}});
  const at::Tensor saved = at::full({1}, 5.0, at::kDouble);
  std::vector<TensorSource> tensors = {tensor_source(of_second, saved)};
  for (const auto& [name, tensor] : job.make_trainer().module().state_dict()) {
    tensors.push_back(tensor_source(name, tensor * 2));
  }
  const auto folder = test::fresh_directory("d") / "source";
  write_huggingface_directory(folder, nlohmann::json::object(), tensors);
  job.config.model_stage_factory.source_checkpoint = folder;
  job.provider.method = DoraConfig{.module_name_pattern = "first|second", .params = {.r = 1, .alpha = 1.0}};
  const auto state = job.make_trainer().module().state_dict();
  const at::Tensor norms = at::linalg_vector_norm(state.at("first.weight"), 2, at::IntArrayRef{1});
  EXPECT_TRUE(at::allclose(state.at(of_first), norms, 1e-12, 1e-12));
  EXPECT_TRUE(at::equal(state.at(of_second), saved));
}

TEST(ModelStageFactory, Loads_again_what_a_trainer_exports_by_default) {
  toy::Job job({{toy::samples(0, 1)}});
  auto trainer = job.make_trainer();
  EXPECT_EQ(trainer.train(), TrainingOutcome::kFinished);
  const auto folder = test::fresh_directory("d") / "export";
  trainer.export_to(folder);
  toy::Job again({{toy::samples(0, 1)}});
  again.config.model_stage_factory.source_checkpoint = folder;
  const auto loaded = again.make_trainer();
  for (const auto& [name, tensor] : trainer.module().state_dict()) {
    EXPECT_TRUE(at::equal(tensor, loaded.module().state_dict().at(name))) << name;
  }
}

}  // namespace
}  // namespace d9d::model_builder_test
