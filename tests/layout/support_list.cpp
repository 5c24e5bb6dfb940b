#include "tests/layout/support_list.h"

#include <algorithm>
#include <cctype>
#include <ostream>
#include <utility>

#include "d9d/base/check.h"

namespace d9d::test {

using Mesh = DeviceMeshParameters;

const std::vector<MeshAxisInfo>& mesh_axes() {
  static const std::vector<MeshAxisInfo> axes = {
      {MeshAxis::kPipeline, "PP", "pp", &Mesh::pipeline_parallel},
      {MeshAxis::kReplicate, "DP", "dp", &Mesh::data_parallel_replicate},
      {MeshAxis::kShard, "FSDP", "fsdp", &Mesh::data_parallel_shard},
      {MeshAxis::kContextReplicate, "CP replicas", "cpr", &Mesh::context_parallel_replicate},
      {MeshAxis::kContextShard, "CP", "cp", &Mesh::context_parallel_shard},
      {MeshAxis::kTensor, "TP", "tp", &Mesh::tensor_parallel},
      {MeshAxis::kExpert, "EP", "ep", &Mesh::expert_parallel}};
  return axes;
}

std::string to_text(const DeviceMeshParameters& mesh) {
  std::string text;
  for (const MeshAxisInfo& axis : mesh_axes()) {
    if (mesh.*axis.degree > 1) text += cat(text.empty() ? "" : " x ", axis.name, " ", mesh.*axis.degree);
  }
  return text.empty() ? "one rank" : text;
}

namespace {

using Part = SupportCase::Part;

constexpr const char* kDense = "qwen3_dense";
constexpr const char* kExperts = "qwen3_moe";

std::int64_t& degree(Mesh& mesh, MeshAxis axis) { return mesh.*mesh_axes()[static_cast<std::size_t>(axis)].degree; }

std::string id_of(const Mesh& mesh) {
  std::string id;
  for (const MeshAxisInfo& axis : mesh_axes()) {
    if (mesh.*axis.degree > 1) id += cat(id.empty() ? "" : "_", axis.id, mesh.*axis.degree);
  }
  return id.empty() ? "one_rank" : id;
}

std::string id_of(const std::string& words) {
  std::string id;
  for (const char c : words) id += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return id;
}

// Of four layers, so that two ranks of a pipeline may have two stages each, and sequences without padding.
LayoutJob job_of(const std::string& family, const Mesh& mesh) {
  LayoutJob job{.family = family, .num_layers = 4};
  job.num_positions = std::max(job.num_positions, mesh.position_divisor());
  job.num_key_heads = std::max<std::int64_t>(2, mesh.tensor_parallel);
  job.num_heads = 2 * job.num_key_heads;
  job.balances_by_loss = has_experts(job);
  return job;
}

// A mixture of experts has two stages a rank where its layers suffice.
Layout layout_of(const std::string& family, const Mesh& mesh) {
  Layout layout{.mesh = mesh};
  if (mesh.pipeline_parallel == 2 && family == kExperts) layout.schedule = Schedule::kZeroBubbleV;
  return layout;
}

class List {
 public:
  void add_pairs() {
    for (const MeshAxisInfo& one : mesh_axes()) {
      for (const MeshAxisInfo& other : mesh_axes()) {
        if (other.axis < one.axis) continue;
        for (const auto& [first, second] : degrees_of(one.axis, other.axis)) {
          add_pair(one.axis, first, other.axis, second);
        }
      }
    }
  }

  void add_more() {
    const std::vector<Mesh> meshes = {
        // Three with tensor parallelism.
        {.pipeline_parallel = 2, .data_parallel_replicate = 2, .tensor_parallel = 2},
        {.pipeline_parallel = 2, .data_parallel_shard = 2, .tensor_parallel = 2},
        {.pipeline_parallel = 2, .context_parallel_replicate = 2, .tensor_parallel = 2},
        {.pipeline_parallel = 2, .context_parallel_shard = 2, .tensor_parallel = 2},
        {.data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2},
        {.data_parallel_replicate = 2, .context_parallel_shard = 2, .tensor_parallel = 2},
        {.data_parallel_shard = 2, .context_parallel_replicate = 2, .tensor_parallel = 2},
        {.data_parallel_shard = 2, .context_parallel_shard = 2, .tensor_parallel = 2},
        {.context_parallel_replicate = 2, .context_parallel_shard = 2, .tensor_parallel = 2},
        {.pipeline_parallel = 2, .tensor_parallel = 2, .expert_parallel = 2},
        {.data_parallel_replicate = 2, .tensor_parallel = 2, .expert_parallel = 4},
        {.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2},
        {.data_parallel_shard = 2, .tensor_parallel = 4, .expert_parallel = 8},
        {.context_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2},
        // Three with context parallelism.
        {.pipeline_parallel = 2, .data_parallel_replicate = 2, .context_parallel_shard = 2},
        {.pipeline_parallel = 2, .context_parallel_replicate = 2, .context_parallel_shard = 2},
        {.pipeline_parallel = 2, .context_parallel_shard = 4, .tensor_parallel = 2},
        {.data_parallel_shard = 2, .context_parallel_replicate = 2, .context_parallel_shard = 2},
        {.data_parallel_shard = 2, .context_parallel_shard = 4, .tensor_parallel = 2},
        {.data_parallel_replicate = 2, .context_parallel_shard = 2, .expert_parallel = 4},
        {.data_parallel_shard = 2, .context_parallel_replicate = 2, .expert_parallel = 4},
        {.context_parallel_replicate = 2, .context_parallel_shard = 2, .expert_parallel = 4},
        {.context_parallel_shard = 2, .tensor_parallel = 4, .expert_parallel = 4},
        {.context_parallel_shard = 4, .tensor_parallel = 2, .expert_parallel = 8},
        // Three with neither, or one of them.
        {.pipeline_parallel = 2, .data_parallel_replicate = 2, .data_parallel_shard = 2},
        {.pipeline_parallel = 2, .data_parallel_shard = 2, .context_parallel_shard = 2},
        {.data_parallel_replicate = 2, .data_parallel_shard = 2, .context_parallel_shard = 2},
        {.data_parallel_replicate = 2, .data_parallel_shard = 2, .expert_parallel = 4},
        {.data_parallel_shard = 2, .context_parallel_shard = 2, .expert_parallel = 4},
        {.pipeline_parallel = 2, .context_parallel_shard = 2, .expert_parallel = 2},
        // Four and more.
        {.pipeline_parallel = 2, .data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2},
        {.pipeline_parallel = 2, .data_parallel_shard = 2, .context_parallel_shard = 2, .tensor_parallel = 2},
        {.pipeline_parallel = 2, .data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 4},
        {.pipeline_parallel = 2,
         .data_parallel_shard = 2,
         .context_parallel_shard = 2,
         .tensor_parallel = 2,
         .expert_parallel = 4}};
    for (const Mesh& mesh : meshes) add(Part::kMore, mesh);
  }

  // Of 64 ranks. Dense models have all but the experts' axis.
  void add_all() {
    const std::vector<Mesh> meshes = {{.pipeline_parallel = 2,
                                       .data_parallel_replicate = 2,
                                       .data_parallel_shard = 2,
                                       .context_parallel_replicate = 2,
                                       .context_parallel_shard = 2,
                                       .tensor_parallel = 2,
                                       .expert_parallel = 8},
                                      {.pipeline_parallel = 4,
                                       .data_parallel_replicate = 2,
                                       .data_parallel_shard = 2,
                                       .context_parallel_shard = 2,
                                       .tensor_parallel = 2,
                                       .expert_parallel = 4},
                                      {.pipeline_parallel = 2,
                                       .data_parallel_replicate = 2,
                                       .data_parallel_shard = 2,
                                       .context_parallel_shard = 4,
                                       .tensor_parallel = 2,
                                       .expert_parallel = 8}};
    for (const Mesh& mesh : meshes) {
      Mesh of_dense = mesh;
      of_dense.expert_parallel = 1;
      add_of(kDense, Part::kAll, of_dense);
      Layout& layout = cases_.back().drawn.layout;
      layout.checkpoints = Checkpoints::kLayers;
      if (mesh.pipeline_parallel == 2) layout.schedule = Schedule::kZeroBubble;
      add_of(kExperts, Part::kAll, mesh);
    }
  }

  void add_features();
  void add_resumes();

  [[nodiscard]] std::vector<SupportCase> take() { return std::move(cases_); }

 private:
  // Axes that cut what a layer computes have larger degrees too.
  static std::vector<std::pair<std::int64_t, std::int64_t>> degrees_of(MeshAxis one, MeshAxis other) {
    const auto cuts_positions = [](MeshAxis axis) {
      return axis == MeshAxis::kContextReplicate || axis == MeshAxis::kContextShard;
    };
    if (one == other && (one == MeshAxis::kTensor || cuts_positions(one))) return {{2, 2}, {4, 4}, {8, 8}};
    std::vector<std::pair<std::int64_t, std::int64_t>> all = {{2, 2}};
    if (one == other) return all;
    if (other == MeshAxis::kTensor) all.insert(all.end(), {{2, 4}, {2, 8}});
    if (one == MeshAxis::kTensor) all.insert(all.end(), {{4, 2}, {8, 2}});
    if (cuts_positions(one)) all.emplace_back(4, 2);
    if (cuts_positions(other)) all.emplace_back(2, 4);
    return all;
  }

  void add_pair(MeshAxis one, std::int64_t first, MeshAxis other, std::int64_t second) {
    if (one == MeshAxis::kExpert) return;  // has no ranks of its own
    Mesh mesh;
    degree(mesh, one) = first;
    degree(mesh, other) = second;
    if (one == MeshAxis::kPipeline && other == MeshAxis::kExpert) mesh.data_parallel_shard = 2;  // which has the ranks
    add(Part::kPair, mesh, {one, other});
  }

  // For both families, if they can have it.
  void add(Part part, const Mesh& mesh, const std::vector<MeshAxis>& axes = {}) {
    for (const std::string family : {kDense, kExperts}) {
      if (mesh.expert_parallel == 1 || family == kExperts) add_of(family, part, mesh, axes);
    }
  }

  void add_of(const std::string& family, Part part, const Mesh& mesh, const std::vector<MeshAxis>& axes = {}) {
    cases_.push_back({.part = part,
                      .name = cat(id_of(mesh), "_", family),
                      .axes = axes,
                      .drawn = {.job = job_of(family, mesh), .layout = layout_of(family, mesh)}});
  }

  std::vector<SupportCase> cases_;
};

struct Feature {
  const char* words;
  LayoutJob job = {};
  Layout layout = {};
};

const std::vector<Feature>& features() {
  using enum Head;
  static const std::vector<Feature> all = {
      {"Llama 3", {.family = "llama3"}},
      {"Qwen2 (biases)", {.family = "qwen2"}},
      {"attention with a gate, a softcap and biases", {.family = kOwnLayers, .own = {.attention = Attention::kGated}}},
      {"attention with a window and sinks", {.family = kOwnLayers, .own = {.attention = Attention::kWindow}}},
      {"attention with a window and sinks, by a ring",
       {.family = kOwnLayers, .own = {.attention = Attention::kWindow}},
       {.context = {.attention = ContextAttention::kRing}}},
      {"dropout", {.family = kOwnLayers, .own = {.dropout = 0.25}}},
      {"a block that some microbatches leave out", {.family = kOwnLayers, .own = {.has_branch = true}}},
      {"a buffer of all ranks", {.family = kOwnLayers, .own = {.has_buffer = true}}},
      {"tied embeddings", {.ties_embeddings = true}},
      {"frozen parameters", {.freezes_attention = true}},
      {"accumulation over more microbatches", {.num_microbatches = 24}},
      {"several sequences a microbatch", {.num_sequences = 3}},
      {"activation checkpointing of layers", {}, {.checkpoints = Checkpoints::kLayers}},
      {"layers that keep, recompute and offload", {}, {.checkpoints = Checkpoints::kPlans}},
      {"nested activation checkpointing", {}, {.checkpoints = Checkpoints::kOuterNested}},
      {"master weights", {}, {.keeps_master_weights = true}},
      {"layers that run twice", {.calls_layers_twice = true}},
      {"two forwards before a backward", {.has_pairs = true}},
      {"packed documents", {.packs = true}},
      {"packed documents, by a ring", {.packs = true}, {.context = {.attention = ContextAttention::kRing}}},
      {"padded sequences", {.has_short_sequences = true}, {.pads = true}},
      {"prompts without labels", {.labels = Labels::kSecondHalf}},
      {"a classification head", {.heads = {kClassification}, .pooling = Pooling::kLast}},
      {"an embedding head", {.heads = {kEmbedding}}},
      {"three heads", {.heads = {kCausalLM, kClassification, kEmbedding}, .leaves_out = LeftOut::kMicrobatches}},
      {"preferences (DPO)", {.prefers = true, .num_sequences = 2}},
      {"LoRA", {.adapts = true, .update_rule = UpdateRule::kNesterov}},
      {"DoRA", {.adapts = true, .has_magnitudes = true, .update_rule = UpdateRule::kNesterov}},
      {"LoRA of a tied head", {.ties_embeddings = true, .adapts = true, .update_rule = UpdateRule::kNesterov}},
      {"SGD", {.update_rule = UpdateRule::kSgd}},
      {"SGD with momentum", {.update_rule = UpdateRule::kMomentum}},
      {"Adam with amsgrad", {.update_rule = UpdateRule::kAdam}},
      {"Muon", {.update_rule = UpdateRule::kMuon}},
      {"groups of parameters", {.has_groups = true}},
      {"averages of the weights", {.has_averages = true}},
      {"gradients reduced once a step", {.num_microbatches = 24}, {.fsdp = {.reduce_on_last_microbatch = true}}},
      {"slices by copies",
       {},
       {.fsdp = {.gather = ExchangeMethod::kCopyEngine, .reduce = ExchangeMethod::kCopyEngine}}},
      {"a job that sleeps between steps", {}, {.sleeps = {SleepTag::kTensorStates, SleepTag::kComms}}},
      {"experts balanced without a loss", {.family = kExperts, .balances_by_bias = true}},
      {"dense layers among experts", {.family = kExperts, .num_dense = 2, .balances_by_loss = true}},
      {"experts that get no token", {.family = kExperts, .starves_experts = true}},
      {"experts of padded sequences",
       {.family = kExperts, .balances_by_loss = true, .has_short_sequences = true},
       {.pads = true}},
      {"checkpointed experts", {.family = kExperts, .balances_by_loss = true}, {.checkpoints = Checkpoints::kNested}},
      {"LoRA of experts", {.family = kExperts, .adapts = true, .update_rule = UpdateRule::kNesterov}},
      {"a shared expert", {.family = kOwnLayers, .own = {.has_experts = true, .has_shared_expert = true}}}};
  return all;
}

// Each on every mesh that a column of the page has.
void List::add_features() {
  for (const Mesh& columns : {Mesh{.data_parallel_shard = 2, .tensor_parallel = 2},
                              Mesh{.data_parallel_shard = 2, .context_parallel_shard = 2},
                              Mesh{.context_parallel_shard = 2, .tensor_parallel = 2},
                              Mesh{.pipeline_parallel = 2, .data_parallel_shard = 2}}) {
    for (const Feature& feature : features()) {
      SupportCase each{
          .part = Part::kFeature, .feature = feature.words, .drawn = {.job = feature.job, .layout = feature.layout}};
      each.drawn.layout.mesh = columns;
      each.drawn.job.num_layers = 4;
      if (has_experts(feature.job)) each.drawn.layout.mesh.expert_parallel = 2;
      // These run their layers themselves, not by stages.
      if (columns.pipeline_parallel > 1 && (feature.job.calls_layers_twice || feature.job.has_pairs)) continue;
      each.name = cat(id_of(each.drawn.layout.mesh), "_", id_of(feature.words));
      cases_.push_back(std::move(each));
    }
  }
}

void List::add_resumes() {
  struct Meshes {
    Mesh first;
    Mesh rest;
  };
  const std::vector<Meshes> resumes = {
      {{.tensor_parallel = 2}, {}},
      {{}, {.tensor_parallel = 4}},
      {{.tensor_parallel = 8}, {.data_parallel_shard = 4}},
      {{.data_parallel_shard = 4}, {.tensor_parallel = 2}},
      {{.pipeline_parallel = 2, .data_parallel_shard = 2}, {.tensor_parallel = 4}},
      {{.tensor_parallel = 4}, {.context_parallel_shard = 2, .tensor_parallel = 2}},
      {{.pipeline_parallel = 2, .tensor_parallel = 2},
       {.data_parallel_replicate = 2, .data_parallel_shard = 2, .tensor_parallel = 2}},
      {{.data_parallel_shard = 2, .context_parallel_shard = 2, .tensor_parallel = 2}, {.pipeline_parallel = 4}},
      {{.data_parallel_shard = 4}, {.pipeline_parallel = 2, .context_parallel_shard = 2}},
      {{.context_parallel_shard = 4}, {.pipeline_parallel = 2, .tensor_parallel = 2}},
      {{.context_parallel_replicate = 2, .context_parallel_shard = 2}, {.data_parallel_shard = 4}}};
  const std::vector<Meshes> of_experts = {
      {{.data_parallel_shard = 4, .expert_parallel = 2}, {.pipeline_parallel = 2, .data_parallel_shard = 2}},
      {{.data_parallel_shard = 2, .tensor_parallel = 2, .expert_parallel = 2}, {.data_parallel_shard = 4}},
      {{.data_parallel_shard = 4, .expert_parallel = 4}, {.tensor_parallel = 4, .expert_parallel = 2}}};
  const auto add_all = [&](const char* family, const std::vector<Meshes>& all) {
    for (const auto& [first, rest] : all) {
      Mesh most = first;
      most.tensor_parallel = std::max(first.tensor_parallel, rest.tensor_parallel);
      most.context_parallel_shard = std::max(first.context_parallel_shard, rest.context_parallel_shard);
      cases_.push_back({.part = Part::kResume,
                        .name = cat(id_of(first), "_then_", id_of(rest), "_", family),
                        .drawn = {.job = job_of(family, most),
                                  .layout = layout_of(family, first),
                                  .resumes_at = 1,
                                  .rest = layout_of(family, rest)}});
    }
  };
  add_all(kDense, resumes);
  add_all(kExperts, resumes);
  add_all(kExperts, of_experts);
}

}  // namespace

void PrintTo(const SupportCase& each, std::ostream* out) { *out << "LayoutCase" << to_source(each.drawn); }

const std::vector<SupportCase>& support_list() {
  static const std::vector<SupportCase> all = [] {
    List list;
    list.add_pairs();
    list.add_more();
    list.add_all();
    list.add_features();
    list.add_resumes();
    return list.take();
  }();
  return all;
}

}  // namespace d9d::test
