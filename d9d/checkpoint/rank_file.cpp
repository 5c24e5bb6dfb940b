#include "d9d/checkpoint/rank_file.h"

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/checkpoint/block_checksums.h"
#include "d9d/core/dtensor/held_parts.h"

namespace d9d {
namespace {

std::string entry_of(const OwnedBox& owned) {
  std::string name = owned.tensor;
  for (std::size_t d = 0; d < owned.box.start.size(); ++d) name += cat(d == 0 ? '@' : ',', owned.box.start[d]);
  return name;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

std::vector<LocalBox> boxes_of(const SavedTensor& saved) {
  std::vector<LocalBox> boxes;
  for (const SavedBox& each : saved.boxes) boxes.push_back(each.box);
  return boxes;
}

// Calls visit(saved box, held box, intersection) for what this rank reads of a tensor.
template <class Visit>
void for_each_part(const DTensor& tensor, const SavedTensor& saved, const Visit& visit) {
  const std::vector<HeldPart> held = held_parts(tensor);
  std::vector<LocalBox> targets;
  for (const HeldPart& each : held) targets.push_back(each.box);
  for (const BoxIntersection& part : intersections(boxes_of(saved), targets)) {
    visit(saved.boxes[part.source], held[part.target], part.box);
  }
}

}  // namespace

nlohmann::json write_rank_file(const std::filesystem::path& folder, std::int64_t rank,
                               const std::vector<OwnedBox>& boxes) {
  nlohmann::json entries = nlohmann::json::array();
  if (boxes.empty()) return entries;
  const std::string file = cat("rank-", rank, ".safetensors");
  std::vector<TensorSource> sources;
  for (const OwnedBox& each : boxes) sources.push_back(tensor_source(entry_of(each), each.values.detach()));
  write_safetensors(folder / file, sources);
  const SafetensorsFile written(folder / file);
  for (const OwnedBox& each : boxes) {
    const std::string entry = entry_of(each);
    entries.push_back({{"tensor", each.tensor},
                       {"box",
                        {{"file", file},
                         {"entry", entry},
                         {"start", each.box.start},
                         {"sizes", each.box.sizes},
                         {"checksums", block_checksums(bytes_of(written.tensor(entry)))}}}});
  }
  return entries;
}

const SafetensorsFile& RankFiles::file(const std::string& name) {
  auto& file = files_[name];
  if (file == nullptr) file = std::make_unique<SafetensorsFile>(folder_ / name);
  return *file;
}

void RankFiles::check(const std::string& name, const DTensor& tensor, const SavedTensor& saved) {
  for_each_part(tensor, saved, [&](const SavedBox& source, const HeldPart& target, const LocalBox&) {
    const auto& entries = file(source.file).entries();
    const auto found = entries.find(source.entry);
    const bool is_right = found != entries.end() && found->second.shape == source.box.sizes &&
                          found->second.dtype == target.values.scalar_type();
    D9D_CHECK(is_right, IoError, "[checkpoint] expected the part of ", name, " that the manifest names in ",
              (folder_ / source.file).string(),
              ", got none or another. Remove the folder, and the job continues from the one before.");
  });
}

void RankFiles::read(const std::string& name, const DTensor& tensor, const SavedTensor& saved) {
  const at::NoGradGuard no_grad;
  for_each_part(tensor, saved, [&](const SavedBox& source, const HeldPart& target, const LocalBox& part) {
    const at::Tensor values = file(source.file).tensor(source.entry);
    const FlatRange elements = flat_extent(source.box, part);
    const auto size = static_cast<std::int64_t>(values.element_size());
    const auto bad = first_bad_block(bytes_of(values), source.checksums,
                                     {.begin = elements.begin * size, .end = elements.end * size});
    D9D_CHECK(!bad, IoError, "[checkpoint] expected ", name, " in ", (folder_ / source.file).string(),
              " as it was written, got other bytes in block ", bad.value_or(0),
              ". Remove the folder, and the job continues from the one before.");
    view_of(target.values, target.box, part).copy_(view_of(values, source.box, part));
  });
}

}  // namespace d9d
