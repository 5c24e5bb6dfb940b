#include "d9d/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/base/io/posix.h"
#include "d9d/checkpoint/box_owners.h"
#include "d9d/checkpoint/manifest.h"
#include "d9d/checkpoint/rank_file.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "save-";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kRemoved = ".gone";

// The step of a folder called save-<step>; none for any other name.
std::optional<std::int64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::int64_t step = 0;
  const char* const begin = name.data() + kPrefix.size();
  const char* const end = name.data() + name.size();
  const auto [last, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || last != end || begin == end || step < 0) return std::nullopt;
  return step;
}

std::map<std::int64_t, fs::path> complete_ones(const fs::path& path) {
  std::map<std::int64_t, fs::path> found;
  if (!fs::is_directory(path)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const auto step = step_of(entry.path());
    if (step && fs::exists(entry.path() / kManifestName)) found.emplace(*step, entry.path());
  }
  return found;
}

// Only what a job may have left there.
bool has_only_our_files(const fs::path& folder) {
  if (!fs::is_directory(fs::symlink_status(folder))) return false;
  return std::ranges::all_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return entry.is_regular_file() && (name.starts_with("rank-") || name.starts_with(kManifestName));
  });
}

void remove_unfinished(const fs::path& path) {
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const fs::path name = entry.path().filename();
    const bool is_rest = name.extension() == kUnfinished || name.extension() == kRemoved;
    if (is_rest && step_of(name.stem()) && has_only_our_files(entry.path())) fs::remove_all(entry.path());
  }
}

// The folder loses its name first, so that a kill in between leaves none that looks complete. Of a link, the link
// alone.
void remove_checkpoint(const fs::path& folder) {
  if (fs::is_symlink(folder)) {
    fs::remove(folder);
    return;
  }
  const fs::path gone = cat(folder.string(), kRemoved);
  fs::rename(folder, gone);
  fs::remove_all(gone);
}

}  // namespace

void CheckpointDirectory::save(std::int64_t step, const CheckpointState& state,
                               std::optional<std::int64_t> num_to_keep) const {
  const fs::path folder = path_ / cat(kPrefix, step);
  const fs::path staging = path_ / cat(kPrefix, step, kUnfinished);
  job_.throw_if_failed();
  on_first_rank(job_, [&] {
    detail::make_writable_folder(path_);
    const bool is_ours = !fs::exists(folder) || fs::exists(folder / kManifestName);
    D9D_CHECK(is_ours, IoError, "[checkpoint] expected no other folder or file ", folder.string(),
              ", got one without a manifest.json. Move it away, or save elsewhere.");
    remove_unfinished(path_);
    fs::create_directory(staging);
  });
  try {
    nlohmann::json entries;
    agreed(job_, [&] { entries = write_rank_file(staging, job_.index(), boxes_of_rank(state.tensors, job_)); });
    const std::vector<nlohmann::json> all =
        job_.num_ranks() > 1 ? gather_object(entries, *job_.communicator(), /*root=*/0) : std::vector{entries};
    job_.throw_if_failed();  // values that crossed ranks are those that were written
    on_first_rank(job_, [&] {
      write_manifest(staging, step, state, all);
      if (fs::exists(folder)) remove_checkpoint(folder);
      fs::rename(staging, folder);
      detail::sync_directory(path_);
      const auto complete = complete_ones(path_);
      std::int64_t left = std::ssize(complete);
      for (auto oldest = complete.begin(); num_to_keep && left > *num_to_keep; ++oldest) {
        if (oldest->first == step) continue;
        remove_checkpoint(oldest->second);
        --left;
      }
    });
  } catch (const Error&) {
    std::error_code ignored;
    if (job_.index() == 0) fs::remove_all(staging, ignored);
    throw;
  }
}

void CheckpointDirectory::prepare() const {
  on_first_rank(job_, [&] { detail::make_writable_folder(path_); });
}

std::vector<fs::path> CheckpointDirectory::others() const {
  std::vector<fs::path> found;
  if (!fs::is_directory(path_)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
    if (step_of(entry.path()) && !fs::exists(entry.path() / kManifestName)) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

std::optional<SavedCheckpoint> CheckpointDirectory::newest() const {
  nlohmann::json found;
  on_first_rank(job_, [&] {
    const auto complete = complete_ones(path_);
    if (!complete.empty()) found = complete.rbegin()->second.string();
  });
  found = all_gather_object(found, job_).front();
  if (found.is_null()) return std::nullopt;
  return SavedCheckpoint(found.get<std::string>());
}

struct SavedCheckpoint::Contents {
  fs::path folder;
  Manifest manifest;
};

SavedCheckpoint::SavedCheckpoint(const fs::path& folder)
    : contents_(std::make_unique<Contents>(Contents{.folder = folder, .manifest = read_manifest(folder)})) {
  const auto named = step_of(folder);
  D9D_CHECK(!named || *named == step(), IoError, "[checkpoint] expected step ", named.value_or(0), " in ",
            folder.string(), ", got step ", step(), ". Give the folder the name of its step.");
}
SavedCheckpoint::~SavedCheckpoint() = default;
SavedCheckpoint::SavedCheckpoint(SavedCheckpoint&&) noexcept = default;
SavedCheckpoint& SavedCheckpoint::operator=(SavedCheckpoint&&) noexcept = default;

const fs::path& SavedCheckpoint::folder() const { return contents_->folder; }
std::int64_t SavedCheckpoint::step() const { return contents_->manifest.step; }
const nlohmann::ordered_json& SavedCheckpoint::values() const { return contents_->manifest.values; }

void SavedCheckpoint::load(const CheckpointState& state, const DeviceMesh& job, const std::string& prefix) const {
  check_tensors(contents_->manifest, state.tensors, prefix, contents_->folder);  // the same on all ranks
  RankFiles files(contents_->folder);
  const auto each = [&](void (RankFiles::*visit)(const std::string&, const DTensor&, const SavedTensor&)) {
    agreed(job, [&] {
      for (const auto& [name, tensor] : state.tensors)
        (files.*visit)(name, tensor, contents_->manifest.tensors.at(name));
    });
  };
  each(&RankFiles::check);
  each(&RankFiles::read);
}

}  // namespace d9d
