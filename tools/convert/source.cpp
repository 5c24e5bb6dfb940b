#include "tools/convert/source.h"

#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/base/config/record_json.h"
#include "d9d/base/io/input_file.h"
#include "d9d/checkpoint/checkpoint_directory.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/models/decoder/decoder_with_head.h"
#include "d9d/models/families.h"
#include "d9d/peft/export_config.h"

namespace d9d::convert {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

Files files_beside_weights(const fs::path& folder) {
  const std::set<std::string> weights = {".safetensors", ".bin", ".pt",      ".pth", ".ckpt",
                                         ".gguf",        ".h5",  ".msgpack", ".onnx"};
  Files files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const bool is_kept = !weights.contains(entry.path().extension()) && !name.starts_with(".");
    if (entry.is_regular_file() && is_kept && !name.ends_with(".index.json")) files[name] = text_of_file(entry.path());
  }
  return files;
}

Source open_folder(const fs::path& folder) {
  const auto directory = std::make_shared<const HuggingFaceDirectory>(folder);
  return {.opened = directory,
          .tensors = tensors_of(*directory),
          .read_config = [directory] { return directory->read_config(); },
          .files = files_beside_weights(folder),
          .has_untied_head = directory->has_untied_head(),
          .ignored_index = ignored_index(folder)};
}

// What the source of a job's checkpoint has of the family. hparams: CausalLMProvider::dump_hparams().
template <class Parameters>
void describe(const ModelFamily<Parameters>& family, const nlohmann::ordered_json& hparams, const ConfigPath& path,
              Options& options, Source& source) {
  const auto sizes = parse_record<Parameters>(hparams.at("model"), path / "model");
  std::string vocabulary;
  for (const std::string& split : sizes.split_vocab_order) {
    vocabulary += cat(vocabulary.empty() ? "" : ",", split, "=", sizes.split_vocab_size.at(split));
  }
  if (options.vocabulary.empty()) options.vocabulary = vocabulary;
  if (!options.to) options.to = Naming::kHuggingFace;
  const auto exported =
      parse_record<ExportConfig>(hparams.value("export", nlohmann::ordered_json::object()), path / "export");
  if (!options.dtype) {
    options.dtype = exported.dtype ? *exported.dtype : parse_record<Dtype>(hparams.at("dtype"), path / "dtype");
  }
  auto published = sizes;
  const auto adapters = hparams.value("adapters", nlohmann::ordered_json());
  if (!adapters.is_null() && *options.to != Naming::kD9d) {
    if (!options.adapters) options.adapters = exported.adapters;
    source.adapted = adapted_model(parse_record<PeftConfig>(adapters, path / "adapters"),
                                   *make_decoder_for_causal_lm(family.build(sizes, {}), {}));
    if (!source.adapted->untied.empty()) published.tie_word_embeddings = false;
    source.published = family.to_huggingface(published, CausalLMHeadConfig{}, ExpertsFormat::kModuleList);
  }
  const nlohmann::json config = family.huggingface_config(published, CausalLMHeadConfig{}, *options.dtype);
  source.head = CausalLMHeadConfig{};
  source.read_config = [config] { return config; };
  source.files["config.json"] = config.dump(2) + "\n";
}

// The tensors of a model with the averages of its weights, in the model's dtypes.
NamedTensors with_averages(const NamedTensors& model, const NamedTensors& averages) {
  const auto find = [model, averages](const std::string& name) {
    const std::optional<TensorSource> trained = model.find(name);
    std::optional<TensorSource> average = averages.find(name + ".average");
    if (!trained || !average) return trained;
    average->name = name;
    if (average->dtype == trained->dtype) return average;
    return std::optional(
        TensorSource{.name = name,
                     .dtype = trained->dtype,
                     .shape = trained->shape,
                     .read = [average = *average, dtype = trained->dtype] { return average.read().to(dtype); },
                     .origin = average->origin});
  };
  return {.names = model.names, .find = find};
}

NamedTensors weights_of(const SavedCheckpoint& saved, const std::optional<Weights>& wanted) {
  const NamedTensors model = saved.tensors("model."), averages = saved.tensors("ema.");
  const nlohmann::ordered_json none = nlohmann::ordered_json::object();
  const auto ema = saved.values().value("trainer", none).value("ema", none);
  const bool exports_averages = ema.is_object() && ema.value("export", "") == enum_name(Weights::kAveraged);
  if (wanted ? *wanted == Weights::kTrained : !exports_averages) return model;
  D9D_CHECK(!averages.names.empty(), UsageError, "[convert] expected averages of the weights in '",
            saved.folder().string(), "', got none: its job had no trainer.ema. Leave out --weights.");
  return with_averages(model, averages);
}

Source open_checkpoint(std::shared_ptr<const SavedCheckpoint> saved, Options& options) {
  Source source{.opened = saved, .tensors = weights_of(*saved, options.weights)};
  const std::string file = (saved->folder() / "manifest.json").string();
  const nlohmann::ordered_json& values = saved->values();
  const auto hparams =
      values.value("hparams", nlohmann::ordered_json::object()).value("model", nlohmann::ordered_json());
  const std::string name = hparams.is_object() ? hparams.value("family", "") : "";
  const auto factory = values.value("trainer", nlohmann::ordered_json::object())
                           .value("model_stage_factory", nlohmann::ordered_json::object());
  source.read_config = [file]() -> nlohmann::json {
    throw ConfigError(cat("[convert] expected a model of a family of d9d in ", file,
                          ", got another. Leave out --to, --experts and --qkv, which need one."));
  };
  const auto base = factory.value("source_checkpoint", nlohmann::ordered_json());
  if (base.is_string() && !checkpoint_at(base.get<std::string>())) source.base = base.get<std::string>();
  for_each_family([&](const auto& family) {
    if (name != family.name) return;
    describe(family, hparams, {.keys = "values.hparams.model", .source = file}, options, source);
  });
  D9D_CHECK(source.adapted || !options.adapters, UsageError,
            "[convert] expected --adapters with a checkpoint of a job that trains adapters, and names of Hugging Face, "
            "got '",
            saved->folder().string(), "'. Leave it out.");
  return source;
}

}  // namespace

Source open_source(Options& options) {
  std::optional<SavedCheckpoint> saved = checkpoint_at(options.source);
  D9D_CHECK(saved || (!options.weights && !options.adapters), UsageError,
            "[convert] expected --weights and --adapters with a checkpoint of a job, got '", options.source.string(),
            "'. Leave them out.");
  Source source = saved ? open_checkpoint(std::make_shared<const SavedCheckpoint>(std::move(*saved)), options)
                        : open_folder(options.source);
  if (!options.files.empty()) {
    Files others = files_beside_weights(options.files);
    others.erase("config.json");
    for (auto& [name, text] : others) source.files[name] = std::move(text);
  }
  return source;
}

}  // namespace d9d::convert
