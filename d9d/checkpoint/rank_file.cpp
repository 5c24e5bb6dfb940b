#include "d9d/checkpoint/rank_file.h"

#include <algorithm>
#include <fstream>
#include <span>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/base/io/input_file.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/core/dtensor/held_parts.h"
#include "d9d/model_state/io/block_checksums.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

std::string entry_of(const OwnedBox& owned) {
  std::string name = owned.tensor;
  for (std::size_t d = 0; d < owned.box.start.size(); ++d) name += cat(d == 0 ? '@' : ',', owned.box.start[d]);
  return name;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

fs::path note_of(const fs::path& folder, std::int64_t rank) { return folder / cat("rank-", rank, ".cbor"); }
// Returns the path of the checksum file that belongs to a rank's safetensors file.
fs::path checksums_of(fs::path values) { return values.replace_extension(".checksums"); }

// Returns the dtype that LibTorch calls `name`; Undefined if there is none.
at::ScalarType dtype_named(const std::string& name) {
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    if (at::toString(static_cast<at::ScalarType>(i)) == name) return static_cast<at::ScalarType>(i);
  }
  return at::ScalarType::Undefined;
}

DTensor without_values(const DTensor& tensor) {
  DTensor layout = tensor;
  layout.local = at::empty(tensor.local.sizes(), tensor.local.options().device(at::kMeta));
  return layout;
}

}  // namespace

RankFilePlan::RankFilePlan(const std::map<std::string, DTensor>& tensors, const JobTensors& all,
                           const DeviceMesh& job) {
  std::map<std::string, OwnedBox> owned;
  std::vector<TensorSource> sources;
  for (OwnedBox& each : boxes_of_rank(tensors, all, job)) {
    const std::string entry = entry_of(each);
    const at::ScalarType dtype = tensors.at(each.tensor).local.scalar_type();
    sources.push_back({.name = entry, .dtype = dtype, .shape = each.box.sizes, .read = {}});
    owned.emplace(entry, std::move(each));
  }
  sources = in_safetensors_order(std::move(sources));
  header_ = format_safetensors_header(sources, {{"format", "pt"}});
  for (const TensorSource& source : sources) {
    boxes_.push_back(
        {.owned = std::move(owned.at(source.name)), .dtype = source.dtype, .offset = num_bytes_, .entry = source.name});
    num_bytes_ += d9d::num_bytes(source);
  }
  for (const auto& [name, tensor] : tensors) layouts_.emplace(name, without_values(tensor));
}

bool RankFilePlan::is_of(const std::map<std::string, DTensor>& tensors) const {
  return std::ranges::equal(layouts_, tensors, [](const auto& planned, const auto& given) {
    const DTensor &a = planned.second, &b = given.second;
    return planned.first == given.first && a.local.scalar_type() == b.local.scalar_type() &&
           a.global_shape == b.global_shape && a.placements == b.placements && a.mesh == b.mesh;
  });
}

BoxValues host_values_in(const std::map<std::string, DTensor>& tensors) {
  return [&tensors](const PlannedBox& each) {
    const at::NoGradGuard no_grad;
    return values_of(each.owned, tensors.at(each.owned.tensor)).cpu().resolve_conj().resolve_neg().contiguous();
  };
}

void write_rank_file(const fs::path& folder, std::int64_t rank, const RankFilePlan& plan, const BoxValues& values,
                     const nlohmann::json& rank_values, const nlohmann::json& shared) {
  nlohmann::json boxes = nlohmann::json::array();
  const std::string name = cat("rank-", rank, ".safetensors");
  if (!plan.boxes().empty()) {
    AtomicFile file(folder / name), checksums(checksums_of(folder / name));
    file.write(plan.header());
    std::int64_t checksums_at = 0;
    for (const PlannedBox& each : plan.boxes()) {
      const at::Tensor box = values(each);
      file.write(bytes_of(box));
      const auto sums = block_checksums(bytes_of(box), checksum_block(std::ssize(bytes_of(box))));
      const std::span<const std::byte> bytes_of_sums = std::as_bytes(std::span(sums));
      checksums.write(bytes_of_sums);
      boxes.push_back({{"tensor", each.owned.tensor},
                       {"dtype", at::toString(each.dtype)},
                       {"box",
                        {{"file", name},
                         {"entry", each.entry},
                         {"start", each.owned.box.start},
                         {"sizes", each.owned.box.sizes},
                         {"checksums_at", checksums_at},
                         {"checksum", checksum(bytes_of_sums)}}}});
      checksums_at += std::ssize(bytes_of_sums);
    }
    checksums.commit();
    file.commit();
  }
  const std::vector<std::uint8_t> note =
      nlohmann::json::to_cbor({{"boxes", std::move(boxes)}, {"values", rank_values}, {"shared", shared}});
  AtomicFile file(note_of(folder, rank));
  file.write(std::as_bytes(std::span(note)));
  file.commit();
}

bool has_rank_notes(const fs::path& folder, std::int64_t num_ranks) {
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    if (!fs::exists(note_of(folder, rank))) return false;
  }
  return true;
}

std::vector<RankNote> read_rank_notes(const fs::path& folder, std::int64_t num_ranks) {
  std::vector<RankNote> notes;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    const fs::path path = note_of(folder, rank);
    std::ifstream file(path, std::ios::binary);
    const auto note = nlohmann::json::from_cbor(file, /*strict=*/true, /*allow_exceptions=*/false);
    D9D_CHECK(file.good() || file.eof(), IoError, "[checkpoint] expected the file ", path.string(), " of rank ", rank,
              ", got none. All ranks must see the same file system.");
    D9D_CHECK(note.is_object() && note.contains("boxes") && note.contains("values") && note.contains("shared"), IoError,
              "[checkpoint] expected ", path.string(), " as rank ", rank, " wrote it, got something else.");
    const fs::path values = folder / cat("rank-", rank, ".safetensors");
    for (const fs::path& written : {values, checksums_of(values)}) {
      D9D_CHECK(note.at("boxes").empty() || fs::exists(written), IoError, "[checkpoint] expected the file ",
                written.string(), " of rank ", rank, ", got none. Leave the folder alone while the job saves.");
    }
    notes.push_back({.boxes = note.at("boxes"), .values = note.at("values"), .shared = note.at("shared")});
  }
  return notes;
}

void remove_rank_notes(const fs::path& folder, std::int64_t num_ranks) {
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) fs::remove(note_of(folder, rank));
}

const SafetensorsFile& RankFiles::open(const std::string& file) try {
  const auto found = files_.find(file);
  if (found != files_.end()) return found->second;
  const InputFile checksums(checksums_of(folder_ / file));  // throws if they are missing
  return files_.try_emplace(file, folder_ / file).first->second;
} catch (const IoError& error) {
  const std::string text = error.what();  // its last sentence, replaced below, is a remedy for downloads
  throw IoError(cat(text.substr(0, text.rfind(". ")), ". The checkpoint is not whole: remove the folder ",
                    folder_.string(), ", and the job continues from the one before."));
}

StoredTensor RankFiles::find(const std::string& tensor, const SavedTensor& saved, const SavedBox& box) {
  const fs::path path = folder_ / box.file;
  const auto& entries = open(box.file).entries();
  const auto found = entries.find(box.entry);
  const bool is_right = found != entries.end() && found->second.shape == box.box.sizes &&
                        at::toString(found->second.dtype) == saved.dtype;
  D9D_CHECK(is_right, IoError, "[checkpoint] expected the part of ", tensor, " that the manifest names in ",
            path.string(), ", got none or another. Remove the folder, and the job continues from the one before.");
  return {.path = path.string(),
          .offset = static_cast<std::int64_t>(found->second.offset),
          .dtype = found->second.dtype,
          .shape = found->second.shape,
          .checksums = std::make_shared<BlockChecksums>(BlockChecksums{.tensor = tensor,
                                                                       .path = checksums_of(path).string(),
                                                                       .offset = box.checksums_at,
                                                                       .checksum = box.checksum})};
}

std::vector<BoxRead> RankFiles::reads_of(const std::string& name, const DTensor& tensor, const SavedTensor& saved) {
  std::vector<BoxRead> reads;
  for (const HeldPart& held : held_parts(tensor)) {
    TensorSource needed{.name = name, .dtype = tensor.local.scalar_type(), .shape = saved.shape, .read = {}};
    for (const SavedBox& each : saved.boxes) {
      if (!have_common_elements(each.box, held.box)) continue;
      needed.stored.push_back({.box = each.box, .values = find(name, saved, each)});
    }
    for (BoxRead& read : d9d::reads_of(needed, held.box, held.values)) reads.push_back(std::move(read));
  }
  return reads;
}

TensorSource RankFiles::source_of(const std::string& name, const SavedTensor& saved) {
  TensorSource source{
      .name = name, .dtype = dtype_named(saved.dtype), .shape = saved.shape, .read = {}, .origin = folder_.string()};
  for (const SavedBox& each : saved.boxes) {
    source.stored.push_back({.box = each.box, .values = find(name, saved, each)});
  }
  source.read = [source = source] {
    const at::Tensor whole = at::empty(source.shape, source.dtype);
    read_boxes(d9d::reads_of(source, whole_box(source.shape), whole));
    return whole;
  };
  return source;
}

}  // namespace d9d
