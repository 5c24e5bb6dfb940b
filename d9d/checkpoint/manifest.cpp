#include "d9d/checkpoint/manifest.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>

#include <ATen/ATen.h>

#include "d9d/base/check.h"
#include "d9d/base/config/json_depth.h"
#include "d9d/base/config/json_integer.h"
#include "d9d/base/io/atomic_file.h"
#include "d9d/checkpoint/json_numbers.h"
#include "d9d/core/dtensor/box_intersection.h"
#include "d9d/model_state/io/block_checksums.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

constexpr int kFormat = 5;
constexpr const char* kDamaged = ". The file is damaged: remove the folder, and the job continues from the one before.";

std::string checksum_of(const nlohmann::ordered_json& json) {
  const std::string text = json.dump();
  return checksum(std::as_bytes(std::span(text)));
}

SavedBox read_box(const nlohmann::ordered_json& json) {
  return {.file = json.at("file").get<std::string>(),
          .entry = json.at("entry").get<std::string>(),
          .box = {.start = json_integers(json.at("start")), .sizes = json_integers(json.at("sizes"))},
          .checksums_at = json_integer(json.at("checksums_at")),
          .checksum = json.at("checksum").get<std::string>()};
}

// Returns a description of what is wrong with the boxes of a tensor; empty if nothing is wrong.
std::string fault_of(const SavedTensor& tensor) {
  std::int64_t numel = 0, whole = 1;
  for (const std::int64_t size : tensor.shape) {
    if (size < 0 || __builtin_mul_overflow(whole, std::max<std::int64_t>(size, 1), &whole)) return "an invalid shape";
  }
  for (const SavedBox& each : tensor.boxes) {
    const LocalBox& box = each.box;
    if (fs::path(each.file).filename() != each.file || each.file.empty()) return "the file " + each.file;
    if (box.start.size() != tensor.shape.size() || box.sizes.size() != tensor.shape.size()) return "dims of a box";
    for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
      const bool is_inside = box.start[d] >= 0 && box.sizes[d] > 0 && box.start[d] <= tensor.shape[d] &&
                             box.sizes[d] <= tensor.shape[d] - box.start[d];
      if (!is_inside) return "a box outside of it";
    }
    if (__builtin_add_overflow(numel, box.numel(), &numel)) return "boxes on top of each other";
  }
  std::vector<LocalBox> boxes;
  for (const SavedBox& each : tensor.boxes) boxes.push_back(each.box);
  if (!are_disjoint(boxes)) return "boxes on top of each other";
  return numel == c10::multiply_integers(tensor.shape) ? "" : "boxes that do not cover it";
}

// Returns the tensors with the boxes that the notes of the ranks list. Throws StateError unless the boxes of each
// tensor cover it exactly once.
std::map<std::string, SavedTensor> with_boxes(const JobTensors& described, const std::vector<RankNote>& notes) {
  constexpr const char* kExpected = "[checkpoint] expected the same tensors to save on all ranks, got ";
  constexpr const char* kAdvice = ". Give all ranks the same names, shapes and dtypes.";
  std::map<std::string, SavedTensor> tensors;
  for (const auto& [name, tensor] : described) tensors[name] = {.dtype = tensor.dtype, .shape = tensor.shape};
  for (std::size_t rank = 0; rank < notes.size(); ++rank) {
    for (const nlohmann::json& each : notes[rank].boxes) {
      const auto name = each.at("tensor").get<std::string>(), dtype = each.at("dtype").get<std::string>();
      const auto found = tensors.find(name);
      D9D_CHECK(found != tensors.end(), StateError, kExpected, name, " on rank ", rank, " alone", kAdvice);
      D9D_CHECK(found->second.dtype == dtype, StateError, kExpected, name, " as ", dtype, " on rank ", rank, " and ",
                found->second.dtype, " elsewhere", kAdvice);
      found->second.boxes.push_back(read_box(each.at("box")));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    const std::string fault = fault_of(tensor);
    D9D_CHECK(fault.empty(), StateError, kExpected, fault, " of ", name, kAdvice);
  }
  return tensors;
}

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(names.size(), 5); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > 5) text += cat(" and ", names.size() - 5, " more");
  return text;
}

}  // namespace

void write_manifest(const fs::path& folder, std::int64_t step, const JobTensors& described,
                    const nlohmann::ordered_json& values, const std::vector<RankNote>& notes) {
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  for (const auto& [name, tensor] : with_boxes(described, notes)) {
    auto boxes = nlohmann::ordered_json::array();
    for (const SavedBox& each : tensor.boxes) {
      boxes.push_back({{"file", each.file},
                       {"entry", each.entry},
                       {"start", each.box.start},
                       {"sizes", each.box.sizes},
                       {"checksums_at", each.checksums_at},
                       {"checksum", each.checksum}});
    }
    tensors[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"boxes", std::move(boxes)}};
  }
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankNote& note : notes) ranks.push_back(as_text_json(note.values));
  const nlohmann::ordered_json rest = {{"format", kFormat},
                                       {"step", step},
                                       {"values", as_text_json(values)},
                                       {"ranks", std::move(ranks)},
                                       {"tensors", std::move(tensors)}};
  nlohmann::ordered_json manifest = {{"checksum", checksum_of(rest)}};
  manifest.update(rest);
  write_file_atomically(folder / kManifestName, manifest.dump(1) + "\n");
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  std::ifstream file(path);
  D9D_CHECK(file.good() && fs::is_regular_file(path), IoError, "[checkpoint] expected the file ", path.string(),
            ", got none. Name a checkpoint.");
  return parse_manifest({std::istreambuf_iterator<char>(file), {}}, path);
}

Manifest parse_manifest(const std::string& text, const fs::path& path) {
  Manifest manifest;
  D9D_CHECK(json_depth(text) <= kMaxJsonDepth, IoError, "[checkpoint] expected at most ", kMaxJsonDepth,
            " levels of objects and lists in ", path.string(), ", got more", kDamaged);
  try {
    auto json = nlohmann::ordered_json::parse(text);
    D9D_CHECK(json.at("format") == kFormat, IoError, "[checkpoint] expected ", path.string(), " of format ", kFormat,
              ", got ", json.at("format").dump(), ". Use the version that wrote it.");
    const std::string checksum = json.at("checksum").get<std::string>();
    json.erase("checksum");
    D9D_CHECK(checksum_of(json) == checksum, IoError, "[checkpoint] expected ", path.string(),
              " as it was written, got one whose checksum differs", kDamaged);
    manifest.step = json_integer(json.at("step"));
    manifest.values = from_text_json(json.at("values"));
    for (const auto& of_rank : json.at("ranks")) manifest.rank_values.push_back(from_text_json(of_rank));
    for (const auto& [name, tensor] : json.at("tensors").items()) {
      SavedTensor& saved = manifest.tensors[name];
      saved = {.dtype = tensor.at("dtype"), .shape = json_integers(tensor.at("shape")), .boxes = {}};
      for (const auto& box : tensor.at("boxes")) saved.boxes.push_back(read_box(box));
      const std::string fault = fault_of(saved);
      D9D_CHECK(fault.empty(), IoError, "[checkpoint] expected boxes that make up ", name, " in ", path.string(),
                ", got ", fault, kDamaged);
    }
  } catch (const nlohmann::json::exception& error) {
    throw IoError(
        cat("[checkpoint] expected a manifest in ", path.string(), ", got another text: ", error.what(), kDamaged));
  }
  return manifest;
}

void check_tensors(const Manifest& manifest, const JobTensors& tensors, const std::string& prefix,
                   const fs::path& folder) {
  std::vector<std::string> missing, unknown, different;
  for (const auto& [name, tensor] : tensors) {
    const auto found = manifest.tensors.find(name);
    if (found == manifest.tensors.end()) {
      missing.push_back(name);
      continue;
    }
    if (found->second.dtype == tensor.dtype && found->second.shape == tensor.shape) continue;
    different.push_back(cat(name, " (", found->second.dtype, " ", at::IntArrayRef(found->second.shape), " there, ",
                            tensor.dtype, " ", at::IntArrayRef(tensor.shape), " here)"));
  }
  for (const auto& [name, tensor] : manifest.tensors) {
    if (name.starts_with(prefix) && !tensors.contains(name)) unknown.push_back(name);
  }
  std::string text;
  const auto note = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) text += cat(text.empty() ? "" : "; ", what, list_of(names));
  };
  note("it lacks ", missing);
  note("it has also ", unknown);
  note("others are ", different);
  D9D_CHECK(text.empty(), StateError, "[checkpoint] expected the tensors of this job in ", folder.string(), ", but ",
            text, ". Continue with the model and the optimiser that wrote it, or begin in another folder.");
}

}  // namespace d9d
