#include "tests/layout/support_page.h"

#include <algorithm>
#include <cctype>
#include <fstream>

#include <nlohmann/json.hpp>

#include "d9d/base/check.h"

namespace d9d::test {

RoundedMeshes rounded_meshes() {
  std::ifstream file(cat(D9D_SOURCE_DIR, "/tests/program/rounding_layouts.json"));
  const auto groups = nlohmann::json::parse(file);
  const auto meshes_of = [&](const char* group) {
    std::vector<DeviceMeshParameters> meshes;
    for (const auto& [name, degrees] : groups.at(group).items()) {
      DeviceMeshParameters& mesh = meshes.emplace_back();
      for_each_field<DeviceMeshParameters>(
          [&](const auto& field) { mesh.*field.member = degrees.value(field.name, 1); });
    }
    return meshes;
  };
  return {.dense = meshes_of("dense"), .experts = meshes_of("experts")};
}

namespace {

using Part = SupportCase::Part;

constexpr const char* kHead = R"(# Which layouts train as one rank does

Written by `layout_test` from [the list of its cases](../../tests/layout/support_list.cpp); do not edit it:

```
D9D_SUPPORT_PAGE=write build/release/bin/layout_test --gtest_filter='SupportPage.*'    # runs all of it: minutes
D9D_WHOLE_LIST=1 build/release/bin/layout_test --gtest_filter='*SupportList*'          # as make test-full does
```

Each entry is a job of three steps over ranks that are threads, and the same job on one rank without any setting: losses, the
norm of each step, every gradient, and parameters and buffers after the last step agree in **float64 to 1e-9**, and replicas bit
for bit. `bf16` says that the mesh also ran on GPUs in bfloat16, with the kernels of training: its gradients are at most
twice as far from float64 as those of one GPU (`program.layouts_rounding_cuda`). `make test` runs a fifth of the entries and every
refusal, `make test-full` all. The name of a test is that of the mesh and of what is trained, as
`Of/SupportList.Trains_as_one_rank_does/fsdp2_tp2_qwen3_dense`. Beside this list [a fuzzer](../../CONTRIBUTING.md#the-layout-fuzzer) draws
models, losses, meshes and settings at random.

| name here | key of a job file | ranks that |
|---|---|---|
| PP | `mesh.pipeline_parallel` | have some layers |
| DP | `mesh.data_parallel_replicate` | have other samples |
| FSDP | `mesh.data_parallel_shard` | have other samples and a share of the parameters |
| CP replicas | `mesh.context_parallel_replicate` | have other positions |
| CP | `mesh.context_parallel_shard` | have other positions and a share of the parameters |
| TP | `mesh.tensor_parallel` | have a part of each layer |
| EP | `mesh.expert_parallel` | have some experts, among the ranks of the other axes but PP |
)";

bool is_of_experts(const SupportCase& each) { return has_experts(each.drawn.job); }

class Page {
 public:
  Page(const std::vector<SupportCase>& cases, const std::map<std::string, std::string>& refusals,
       const RoundedMeshes& rounded)
      : cases_(cases), refusals_(refusals), rounded_(rounded) {
    for (const SupportCase& each : cases) note_refusal(each);
  }

  [[nodiscard]] std::string text() {
    text_ = kHead;
    add_pairs("One axis and two: dense models", false);
    add_pairs("One axis and two: mixtures of experts", true);
    add_meshes("Three axes and more", Part::kMore);
    add_meshes("All axes at once", Part::kAll);
    add_features();
    add_resumes();
    add_refusals();
    return std::move(text_);
  }

  // Which axes train together, of mixtures of experts, and the meshes of all axes.
  [[nodiscard]] std::string summary() {
    text_.clear();
    add_pair_table(/*of_experts=*/true);
    text_ += "\n";
    std::string all;
    for (const SupportCase& each : cases_) {
      if (each.part != Part::kAll || !is_of_experts(each)) continue;
      all +=
          cat(all.empty() ? "" : "; ", to_text(each.drawn.layout.mesh), refusal_of(each).empty() ? "" : " (refused)");
    }
    return cat(text_, "All at once: ", all, ".\n");
  }

 private:
  // Messages that differ in numbers alone are one: ranks may throw for other layers.
  static std::string without_numbers(std::string message) {
    std::erase_if(message, [](unsigned char c) { return std::isdigit(c) != 0; });
    return message;
  }

  void note_refusal(const SupportCase& each) {
    const auto refused = refusals_.find(each.name);
    if (refused == refusals_.end()) return;
    const std::string kind = without_numbers(refused->second);
    const auto [known, is_new] = number_of_.try_emplace(kind, messages_.size());
    if (is_new) messages_.push_back(refused->second);
    std::string& message = messages_[known->second];
    message = std::min(message, refused->second);
  }

  // Empty: it trains.
  [[nodiscard]] std::string refusal_of(const SupportCase& each) const {
    const auto refused = refusals_.find(each.name);
    if (refused == refusals_.end()) return "";
    return cat("[refused ", number_of_.at(without_numbers(refused->second)) + 1, "](#refused)");
  }

  [[nodiscard]] bool is_rounded(const SupportCase& each) const {
    if (each.part != Part::kPair && each.part != Part::kMore) return false;
    const auto& meshes = is_of_experts(each) ? rounded_.experts : rounded_.dense;
    return std::ranges::find(meshes, each.drawn.layout.mesh) != meshes.end();
  }

  [[nodiscard]] std::string status_of(const SupportCase& each) const {
    const std::string refused = refusal_of(each);
    return !refused.empty() ? refused : is_rounded(each) ? "yes, bf16" : "yes";
  }

  void add_table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows) {
    add_row(head);
    for (std::size_t i = 0; i < head.size(); ++i) text_ += "|---";
    text_ += "|\n";
    for (const auto& row : rows) add_row(row);
  }

  void add_row(const std::vector<std::string>& cells) {
    for (const std::string& cell : cells) text_ += cell.empty() ? "| " : cat("| ", cell, " ");
    text_ += "|\n";
  }

  // Degrees that train, then those that do not, with the reason.
  [[nodiscard]] std::string pair_cell(MeshAxis row, MeshAxis column, bool of_experts) const {
    std::map<std::string, std::string> degrees;  // by the refusal
    for (const SupportCase& each : cases_) {
      if (each.part != Part::kPair || is_of_experts(each) != of_experts) continue;
      if (each.axes != std::vector{row, column}) continue;
      const auto degree = [&](MeshAxis axis) {
        return each.drawn.layout.mesh.*mesh_axes()[static_cast<std::size_t>(axis)].degree;
      };
      std::string& all = degrees[refusal_of(each)];
      all += cat(all.empty() ? "" : ", ", degree(row));
      if (row != column) all += cat(" x ", degree(column));
      if (is_rounded(each)) all += " bf16";
    }
    std::string cell;
    for (const auto& [refused, all] : degrees) {
      cell += cat(cell.empty() ? "" : "; ", refused.empty() ? all : cat(all, " ", refused));
    }
    return cell;
  }

  void add_pairs(const char* title, bool of_experts) {
    text_ += cat("\n## ", title, "\n\nDegrees of the row x the column; the diagonal has an axis alone.",
                 of_experts ? " EP with PP is over two ranks of FSDP.\n\n" : "\n\n");
    add_pair_table(of_experts);
  }

  void add_pair_table(bool of_experts) {
    std::vector<std::string> head = {""};
    std::vector<std::vector<std::string>> rows;
    for (const MeshAxisInfo& row : mesh_axes()) {
      const bool is_of_experts_alone = row.axis == MeshAxis::kExpert;
      if (is_of_experts_alone && !of_experts) continue;
      head.emplace_back(row.name);
      if (is_of_experts_alone) continue;  // has no ranks of its own
      rows.push_back({cat("**", row.name, "**")});
      for (const MeshAxisInfo& column : mesh_axes()) {
        if (column.axis == MeshAxis::kExpert && !of_experts) continue;
        rows.back().push_back(pair_cell(row.axis, column.axis, of_experts));
      }
    }
    add_table(head, rows);
  }

  // What several families have in one row: the texts of the columns, in order of the list.
  using Rows = std::vector<std::vector<std::string>>;
  static std::string& cell_of(Rows& rows, const std::vector<std::string>& key, std::size_t column, std::size_t num) {
    auto found =
        std::ranges::find_if(rows, [&](const auto& row) { return std::equal(key.begin(), key.end(), row.begin()); });
    if (found == rows.end()) {
      rows.push_back(key);
      rows.back().resize(num);
      found = rows.end() - 1;
    }
    return (*found)[column];
  }

  void add_meshes(const char* title, Part part) {
    Rows rows;
    for (const SupportCase& each : cases_) {
      if (each.part != part) continue;
      const DeviceMeshParameters& mesh = each.drawn.layout.mesh;
      cell_of(rows, {to_text(mesh), cat(mesh.world_size())}, is_of_experts(each) ? 3 : 2, 4) = status_of(each);
    }
    text_ += cat("\n## ", title, "\n\n");
    add_table({"mesh", "ranks", "dense", "mixture of experts"}, rows);
  }

  // The mesh without experts, which only some features have.
  static std::string column_of(const SupportCase& each) {
    DeviceMeshParameters mesh = each.drawn.layout.mesh;
    mesh.expert_parallel = 1;
    return to_text(mesh);
  }

  void add_features() {
    std::vector<std::string> head = {""};
    for (const SupportCase& each : cases_) {
      if (each.part == Part::kFeature && std::ranges::find(head, column_of(each)) == head.end()) {
        head.push_back(column_of(each));
      }
    }
    Rows rows;
    for (const SupportCase& each : cases_) {
      if (each.part != Part::kFeature) continue;
      const auto column = static_cast<std::size_t>(std::ranges::find(head, column_of(each)) - head.begin());
      const bool has_expert_ranks = each.drawn.layout.mesh.expert_parallel > 1;
      cell_of(rows, {has_expert_ranks ? cat(each.feature, ", EP 2") : each.feature}, column, head.size()) =
          status_of(each);
    }
    text_ += "\n## What a job may have beside its mesh\n\n";
    add_table(head, rows);
  }

  void add_resumes() {
    Rows rows;
    for (const SupportCase& each : cases_) {
      if (each.part != Part::kResume) continue;
      const std::vector<std::string> key = {to_text(each.drawn.layout.mesh), to_text(each.drawn.rest.mesh)};
      cell_of(rows, key, is_of_experts(each) ? 3 : 2, 4) = status_of(each);
    }
    text_ += "\n## A checkpoint that continues on another mesh\n\nSaved after the first of three steps.\n\n";
    add_table({"saved on", "continued on", "dense", "mixture of experts"}, rows);
  }

  void add_refusals() {
    text_ += "\n## Refused\n\nThe messages of what the entries above name, as a job prints them.\n\n";
    for (std::size_t i = 0; i < messages_.size(); ++i) text_ += cat(i + 1, ". `", messages_[i], "`\n");
    if (messages_.empty()) text_ += "Nothing on this list.\n";
  }

  const std::vector<SupportCase>& cases_;
  const std::map<std::string, std::string>& refusals_;
  const RoundedMeshes& rounded_;
  std::map<std::string, std::size_t> number_of_;  // by the message without numbers
  std::vector<std::string> messages_;
  std::string text_;
};

}  // namespace

std::string support_page(const std::vector<SupportCase>& cases, const std::map<std::string, std::string>& refusals,
                         const RoundedMeshes& rounded) {
  return Page(cases, refusals, rounded).text();
}

std::string support_summary(const std::vector<SupportCase>& cases, const std::map<std::string, std::string>& refusals) {
  return Page(cases, refusals, {}).summary();
}

}  // namespace d9d::test
