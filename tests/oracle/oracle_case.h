// One architecture with one task in one dtype: the results of transformers, and this library's model with the same
// weights.
//
// Example
//   const OracleCase oracle{.architecture = &architectures()[0], .task = &tasks()[0], .dtype = Dtype::kFloat64};
//   LoadedModel loaded(oracle);
//   expect_close("output", loaded.output(), oracle.expected().tensor("output"), tolerance("fp64"));
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/io/safetensors.h"
#include "d9d/peft/adapted_model.h"
#include "d9d/peft/config.h"

#include "tests/oracle/architectures.h"

namespace d9d::test {

using Tensors = std::map<std::string, at::Tensor>;

struct OracleCase {
  const Architecture* architecture;
  const Task* task;
  Dtype dtype;
  std::filesystem::path root = {};  // folder of its results; empty: oracle_folder()

  [[nodiscard]] std::string folder_name() const;
  [[nodiscard]] std::filesystem::path folder() const;
  [[nodiscard]] SafetensorsFile expected() const;
};

// All architectures with all tasks, or only with the task of the given name.
[[nodiscard]] std::vector<OracleCase> cases_in(const std::vector<Dtype>& dtypes, const std::string& only_task = {});

// The folder to which transformers_oracle.py has written. The first call runs it; the tests of this binary share one
// run.
[[nodiscard]] const std::filesystem::path& oracle_folder();

// The same for one layer of each published model, causal_lm in float32: each call writes new files in `root`.
[[nodiscard]] std::vector<OracleCase> write_published_layers(const std::filesystem::path& root);

// The tensors of a file whose names begin with `prefix`, with the prefix removed.
[[nodiscard]] Tensors with_prefix(const SafetensorsFile& file, const std::string& prefix);

class LoadedModel {
 public:
  explicit LoadedModel(const OracleCase& oracle, const DecoderStageOptions& options = {},
                       const std::optional<PeftConfig>& adapters = {});

  [[nodiscard]] at::Tensor output() const { return model_.output(inputs_); }
  [[nodiscard]] at::Tensor loss() const { return model_.loss(inputs_); }
  [[nodiscard]] Module& module() const { return *model_.module; }

  // The names are those of transformers.
  [[nodiscard]] Tensors gradients() const;
  [[nodiscard]] Tensors parameters() const;

  // Of the model without adapters, untied if they untie it; and what has adapters in it.
  [[nodiscard]] StateMapper to_huggingface_mapper() const;
  [[nodiscard]] const AdaptedModel& adapted() const { return adapted_; }

  void export_to(const std::filesystem::path& folder) const;

 private:
  [[nodiscard]] Tensors to_huggingface(const Tensors& tensors) const;

  OracleCase oracle_;
  HuggingFaceDirectory directory_;
  nlohmann::json config_;
  TaskInputs inputs_;
  TaskModel model_;
  AdaptedModel adapted_;
};

}  // namespace d9d::test
