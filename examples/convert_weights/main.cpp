// Converts folders of a model that the library does not know, by a mapper of one's own: GPT-NeoX, whose projection of
// queries, keys and values is one matrix with the rows of head 0, then of head 1, ..., becomes three matrices with
// names as Llama's. Nothing but one such matrix at a time is in memory.
//
//   build/release/bin/convert_weights pythia-160m pythia-160m-separate
#include <iostream>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <nlohmann/json.hpp>

#include "d9d/base/check.h"
#include "d9d/core/launch/launch.h"
#include "d9d/model_state/convert_model_state.h"
#include "d9d/model_state/io/huggingface_directory.h"
#include "d9d/model_state/mapper/compose.h"
#include "d9d/model_state/mapper/leaves.h"

namespace {

namespace mapper = d9d::mapper;

// `packed` has, for each head, the rows of its query, its key and its value.
d9d::StateMapper separate_heads(const std::string& packed, const std::string& layer, std::int64_t num_heads) {
  const std::string kind = packed.substr(packed.rfind('.'));  // .weight or .bias
  std::vector<std::string> outputs;
  for (const char* const name : {"q_proj", "k_proj", "v_proj"}) outputs.push_back(layer + "self_attn." + name + kind);
  return mapper::function("separate_heads", {packed}, outputs, [num_heads](const std::vector<at::Tensor>& inputs) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : inputs[0].unflatten(0, {num_heads, 3, -1}).unbind(1)) {
      parts.push_back(part.flatten(0, 1).contiguous());
    }
    return parts;
  });
}

// gpt_neox.layers.3.attention.query_key_value.weight -> model.layers.3.self_attn.q_proj.weight, ...; names that are not
// listed stay as they are.
d9d::StateMapper mapper_of(const std::vector<std::string>& names, std::int64_t num_heads) {
  std::vector<d9d::StateMapper> all;
  for (const std::string& name : names) {
    const std::size_t attention = name.find("attention.");
    const std::string layer = attention == std::string::npos
                                  ? ""
                                  : "model." + name.substr(0, attention).substr(std::string("gpt_neox.").size());
    if (name.find("query_key_value") != std::string::npos) {
      all.push_back(separate_heads(name, layer, num_heads));
    } else if (name.find("attention.dense") != std::string::npos) {
      all.push_back(mapper::rename(name, layer + "self_attn.o_proj" + name.substr(name.rfind('.'))));
    } else {
      all.push_back(mapper::rename_matching({name}, "^gpt_neox\\.", "model."));
    }
  }
  return mapper::parallel(std::move(all));
}

void convert(int argc, const char* const* argv) {
  D9D_CHECK(argc == 3, d9d::UsageError, "[convert_weights] expected SOURCE and TARGET, got ", argc - 1, " arguments.");
  const d9d::HuggingFaceDirectory source(argv[1]);
  const nlohmann::json config = source.read_config();
  const auto num_heads = config.at("num_attention_heads").get<std::int64_t>();
  const auto unused = d9d::convert_model_state(argv[2], mapper_of(source.names(), num_heads), d9d::tensors_of(source),
                                               {.num_workers = 4, .files = {{"config.json", config.dump(2)}}});
  std::cout << "wrote " << argv[2] << ", " << unused.size() << " tensors unused\n";
}

}  // namespace

int main(int argc, char** argv) {
  return d9d::run_reporting_errors([&] { convert(argc, argv); });
}
