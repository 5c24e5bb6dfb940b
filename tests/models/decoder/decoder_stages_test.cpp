// A decoder divided into pipeline stages must equal the whole decoder.
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/models/decoder/decoder_with_head.h"

#include "tests/support/block_oracle.h"
#include "tests/support/io_faults.h"
#include "tests/support/tiny_blocks.h"

namespace d9d::decoder_stages_test {
namespace {
using test::Tensors;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;
using Model = ModulePtr<DecoderForCausalLM>;
using LMOutput = DecoderOutput<LanguageModellingHead>;

// The model in `num_stages` stages, with snapshots.
std::vector<Model> make_stages(const test::DecoderFamily& family, std::int64_t num_stages,
                               at::ScalarType dtype = at::kDouble, const test::SmallDecoder& sizes = {}) {
  std::vector<Model> stages;
  for (std::int64_t stage = 0; stage < num_stages; ++stage) {
    const DecoderStageOptions options{.stage = {.num_stages = num_stages, .current_stage = stage},
                                      .snapshot_mode = HiddenStatesAggregationMode::kMean};
    stages.push_back(test::initialized(make_decoder_for_causal_lm(test::make_backbone(family, options, sizes)), dtype));
  }
  return stages;
}

DecoderForCausalLM::Shared shared() { return {test::tiny_sequence(), {test::tiny_labels()}}; }

SequenceStageInput input_from(const DecoderForCausalLM::Output& output) { return std::get<SequenceTransfer>(output); }

LMOutput run(const std::vector<Model>& stages) {
  DecoderForCausalLM::Output output = stages.front()(SequenceStageInput(SequenceInput{test::tiny_ids()}), shared());
  for (std::size_t i = 1; i < stages.size(); ++i) output = stages[i](input_from(output), shared());
  return std::get<LMOutput>(output);
}

// All results of a run that training uses.
Tensors trained(const std::vector<Model>& stages) {
  const LMOutput output = run(stages);
  at::Tensor loss = output.head.cross_entropy.sum() + output.hidden_states_snapshot->square().sum();
  if (output.auxiliary_loss) loss = loss + *output.auxiliary_loss;
  loss.backward();
  Tensors results = {{"cross_entropy", output.head.cross_entropy}, {"snapshot", *output.hidden_states_snapshot}};
  if (output.auxiliary_loss) results.emplace("auxiliary_loss", *output.auxiliary_loss);
  for (const Model& stage : stages) {
    for (const auto& [name, gradient] : test::gradients_of(*stage)) results.emplace(name, gradient);
  }
  return results;
}

void expect_same_bits(const Tensors& actual, const Tensors& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    EXPECT_TRUE(found != actual.end() && at::equal(found->second, tensor)) << name;
  }
}

void expect_stages_partition_the_state(const test::DecoderFamily& family) {
  struct Cut {
    std::int64_t layers, stages, pre, post;
  };
  for (const Cut& cut : {Cut{1, 1, 0, 0}, Cut{4, 2, 0, 0}, Cut{5, 3, 0, 0}, Cut{5, 3, 1, 0}, Cut{6, 4, 1, 1},
                         Cut{3, 3, 0, 0}, Cut{4, 2, 0, 2}}) {
    SCOPED_TRACE(::testing::Message() << cut.layers << " layers, " << cut.stages << " stages, " << cut.pre << "+"
                                      << cut.post << " virtual");
    const test::SmallDecoder sizes{
        .num_layers = cut.layers, .num_virtual_layers_pre = cut.pre, .num_virtual_layers_post = cut.post};
    const Tensors whole = make_stages(family, 1, at::kDouble, sizes).front()->state_dict();
    Tensors joined;
    for (const Model& stage : make_stages(family, cut.stages, at::kDouble, sizes)) {
      for (const auto& [name, tensor] : stage->state_dict()) {
        EXPECT_TRUE(joined.emplace(name, tensor).second) << name << " is on two stages";
      }
    }
    expect_same_bits(joined, whole);
  }
}

TEST(DecoderStages, Partition_the_state_and_start_from_the_values_of_the_whole) {
  for (const test::DecoderFamily& family : test::decoder_families()) {
    SCOPED_TRACE(family.name);
    expect_stages_partition_the_state(family);
  }
}

TEST(DecoderStages, Have_the_bits_of_the_whole_in_outputs_snapshots_and_gradients) {
  for (const test::DecoderFamily& family : test::decoder_families()) {
    SCOPED_TRACE(family.name);
    const Tensors whole = trained(make_stages(family, 1));
    EXPECT_EQ(whole.at("snapshot").sizes(), (std::vector<std::int64_t>{5, 2, 16}));
    EXPECT_EQ(whole.contains("auxiliary_loss"), family.has_experts);
    for (const std::int64_t num_stages : {2, 3}) {
      SCOPED_TRACE(num_stages);
      expect_same_bits(trained(make_stages(family, num_stages)), whole);
    }
  }
}

// Shape and dtype.
std::string text_of(const at::Tensor& tensor) { return cat(tensor.scalar_type(), " ", tensor.sizes()); }
std::string text_of(const std::optional<at::Tensor>& tensor) { return tensor ? text_of(*tensor) : "none"; }

void expect_transfers_are_as_announced(const test::DecoderFamily& family, at::ScalarType dtype) {
  const std::vector<Model> stages = make_stages(family, 3, dtype);
  const SequenceInput pipeline_input{test::tiny_ids()};
  SequenceStageInput input = pipeline_input;
  for (std::size_t i = 0; i + 1 < stages.size(); ++i) {
    const DecoderForCausalLM::Output output = stages[i](input, shared());
    const auto& transfer = std::get<SequenceTransfer>(output);
    for (const SequenceTransfer& announced :
         {stages[i]->stage_transfer(pipeline_input, StageBoundary::kOutgoing),
          stages[i + 1]->stage_transfer(pipeline_input, StageBoundary::kIncoming)}) {
      EXPECT_TRUE(announced.hidden_states.is_meta());
      EXPECT_EQ(text_of(announced.hidden_states), text_of(transfer.hidden_states));
      EXPECT_EQ(text_of(announced.hidden_states_snapshot), text_of(transfer.hidden_states_snapshot));
      EXPECT_EQ(text_of(announced.auxiliary_loss), text_of(transfer.auxiliary_loss));
    }
    input = transfer;
  }
}

TEST(DecoderStages, Announce_the_shapes_and_dtypes_that_they_send_and_take) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const test::DecoderFamily& family : test::decoder_families()) {
      expect_transfers_are_as_announced(family, dtype);
    }
  }
}

TEST(DecoderStages, Refuse_the_input_of_another_stage) {
  const std::vector<Model> stages = make_stages(test::decoder_families().front(), 2);
  const SequenceStageInput ids = SequenceInput{test::tiny_ids()};
  const SequenceStageInput transfer = input_from(stages[0](ids, shared()));
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)stages[0](transfer, shared()); }), HasSubstr("stage 0 of 2"));
  EXPECT_THAT(test::message_of<ConfigError>([&] { (void)stages[1](ids, shared()); }), HasSubstr("stage 1 of 2"));
}

TEST(DecoderStages, Have_the_embedding_of_a_tied_head_on_the_first_and_the_last_stage_alone) {
  Qwen3DenseParameters parameters = test::tiny_dense();
  parameters.tie_word_embeddings = true;
  const std::string name = "model.embed_tokens.token_embedding.regular.weight";
  for (const std::int64_t stage : {0, 1, 2}) {
    const DecoderStageOptions options{.stage = {.num_stages = 3, .current_stage = stage}};
    const auto tied = test::initialized(make_decoder_for_causal_lm(test::make_backbone(parameters, options)));
    EXPECT_EQ(tied->state_dict().contains(name), stage != 1) << stage;
    if (tied->head) {
      EXPECT_EQ(tied->head->weights, tied->model->embedding_weights());
    }
    const auto pooled =
        test::initialized(make_decoder_for_classification(test::make_backbone(parameters, options), {.num_labels = 2}));
    EXPECT_EQ(pooled->state_dict().contains(name), stage == 0) << stage;
  }
  const auto first = test::initialized(
      make_decoder_for_causal_lm(test::make_backbone(parameters, {.stage = {.num_stages = 2, .current_stage = 0}})));
  const auto last = test::initialized(
      make_decoder_for_causal_lm(test::make_backbone(parameters, {.stage = {.num_stages = 2, .current_stage = 1}})));
  EXPECT_TRUE(at::equal(first->state_dict().at(name), last->state_dict().at(name)));
}

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : module.state_dict()) names.push_back(name);
  return names;
}

std::vector<std::string> expected_names(const std::vector<std::string>& mlp, const std::vector<std::string>& head) {
  std::vector<std::string> names = {"model.embed_tokens.token_embedding.regular.weight",
                                    "model.embed_tokens.token_embedding.added.weight", "model.norm.weight"};
  for (const char* layer : {"0", "1", "2", "3"}) {
    for (const char* name : {"input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
                             "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm"}) {
      names.push_back(std::string("model.layers.") + layer + "." + name + ".weight");
    }
    for (const std::string& name : mlp)
      names.push_back(std::string("model.layers.") + layer + ".mlp." + name + ".weight");
  }
  names.insert(names.end(), head.begin(), head.end());
  return names;
}

template <class Parameters>
void expect_names(const Parameters& parameters, const std::vector<std::string>& mlp) {
  const auto backbone = [&] { return test::make_backbone(parameters); };
  EXPECT_THAT(
      names(*make_decoder_for_causal_lm(backbone())),
      UnorderedElementsAreArray(expected_names(mlp, {"head.lm_head.regular.weight", "head.lm_head.added.weight"})));
  EXPECT_THAT(names(*make_decoder_for_classification(backbone(), {.num_labels = 2})),
              UnorderedElementsAreArray(expected_names(mlp, {"head.score.weight"})));
  EXPECT_THAT(names(*make_decoder_for_embedding(backbone(), {.embedding_dim = 4})),
              UnorderedElementsAreArray(expected_names(mlp, {"head.projection.weight"})));
  EXPECT_THAT(names(*make_decoder_for_embedding(backbone(), {})), UnorderedElementsAreArray(expected_names(mlp, {})));
}

TEST(DecoderState, Has_the_names_of_d9d_0_24) {
  expect_names(test::tiny_dense(), {"gate_proj", "up_proj", "down_proj"});
  expect_names(test::tiny_moe(),
               {"router.gate", "grouped_experts.gate_proj", "grouped_experts.up_proj", "grouped_experts.down_proj"});
}

}  // namespace
}  // namespace d9d::decoder_stages_test
