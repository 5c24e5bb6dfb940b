#include "d9d/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/io/numbered_folder.h"
#include "d9d/base/io/posix.h"
#include "d9d/checkpoint/manifest.h"
#include "d9d/checkpoint/rank_file.h"
#include "d9d/checkpoint/shared_values.h"
#include "d9d/core/collectives/agreed.h"
#include "d9d/core/collectives/gather.h"
#include "d9d/model_state/io/huggingface_directory.h"

namespace d9d {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "save-";
constexpr std::string_view kUnfinished = ".tmp";
constexpr std::string_view kRemoved = ".gone";
constexpr std::string_view kReplaced = ".old";  // a complete checkpoint that is being replaced by another of its step

std::optional<std::int64_t> step_of(const fs::path& folder) { return number_of_folder(folder, kPrefix); }

bool has_manifest(const fs::path& folder) {
  std::error_code error;
  const bool has = fs::exists(folder / kManifestName, error);
  D9D_CHECK(!error, IoError, "[checkpoint] expected to look into '", folder.string(), "', got ", error.message(),
            ". Change its permissions or move it away.");
  return has;
}

// Returns what is called save-<step> in `path`, by step: the complete checkpoints if are_complete is true, otherwise
// all other files and folders of such a name.
std::map<std::int64_t, fs::path> named_by_step(const fs::path& path, bool are_complete) {
  std::map<std::int64_t, fs::path> found;
  if (!fs::is_directory(path)) return found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const auto step = step_of(entry.path());
    if (step && has_manifest(entry.path()) == are_complete) found.emplace(*step, entry.path());
  }
  return found;
}

std::map<std::int64_t, fs::path> complete_ones(const fs::path& path) {
  return named_by_step(path, /*are_complete=*/true);
}

// Returns whether an entry of a checkpoint's folder is a file that this library writes there.
bool is_our_file(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  return fs::is_regular_file(entry.symlink_status()) && (name.starts_with("rank-") || name.starts_with(kManifestName));
}

// Removes this library's files from a checkpoint's folder, and the folder if nothing else is in it. Files that cannot
// be removed stay.
void remove_rest(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(fs::symlink_status(folder, ignored))) return;
  std::vector<fs::path> ours;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    if (is_our_file(entry)) ours.push_back(entry.path());
  }
  for (const fs::path& path : ours) fs::remove(path, ignored);
  fs::remove(folder, ignored);
}

void remove_unfinished(const fs::path& path) {
  std::vector<fs::path> rests;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    const fs::path name = entry.path().filename(), kind = name.extension();
    const bool is_rest = kind == kUnfinished || kind == kRemoved || kind == kReplaced;
    if (is_rest && step_of(name.stem())) rests.push_back(entry.path());
  }
  for (const fs::path& rest : rests) {
    const fs::path folder = rest.parent_path() / rest.stem();
    if (rest.extension() == kReplaced && !fs::exists(fs::symlink_status(folder))) {
      fs::rename(rest, folder);
    } else {
      remove_rest(rest);
    }
  }
}

fs::path gone(const fs::path& folder) { return cat(folder.string(), kRemoved); }

// Renames the folder before removing its files, so that a kill in between leaves no folder that looks complete. If the
// folder is a symbolic link, only the link is removed.
void remove_checkpoint(const fs::path& folder) {
  if (fs::is_symlink(folder)) {
    fs::remove(folder);
    return;
  }
  fs::rename(folder, gone(folder));
  fs::remove_all(gone(folder));
}

// Renames `staging` to `folder`. An existing folder of that name is first renamed to <folder>.old, which is removed
// after success and renamed back after an error.
void put_in_place(const fs::path& staging, const fs::path& folder) {
  const fs::path replaced = cat(folder.string(), kReplaced);
  const bool replaces = fs::exists(folder) && !fs::is_symlink(folder);
  if (replaces) fs::rename(folder, replaced);
  if (fs::is_symlink(folder)) fs::remove(folder);
  std::error_code error;
  fs::rename(staging, folder, error);
  if (error) {
    if (replaces) fs::rename(replaced, folder);
    errno = error.value();
    detail::throw_system_error("to rename into place", folder);
  }
  detail::sync_directory(folder.parent_path());
  if (replaces) remove_rest(replaced);
}

// Removes the oldest checkpoints as `retention` says, whose num_to_keep must be set, but not that of step `newest`.
// Returns which of them it could not remove, and why.
std::string rotate(const fs::path& path, std::int64_t newest, const Retention& retention) {
  std::string problems;
  const auto complete = complete_ones(path);
  const auto is_kept = [&](const auto& each) { return retention.kept_steps.contains(each.first); };
  std::int64_t left = std::ssize(complete) - std::ranges::count_if(complete, is_kept);
  for (const auto& [step, folder] : complete) {
    if (left <= retention.num_to_keep) break;
    if (step == newest || retention.kept_steps.contains(step)) continue;
    try {
      remove_checkpoint(folder);
    } catch (const fs::filesystem_error& error) {
      problems += cat(problems.empty() ? "" : "; ", folder.string(), " (", error.code().message(), ")");
    }
    --left;
  }
  return problems;
}

}  // namespace

std::unique_ptr<FolderLock> CheckpointDirectory::prepare() const {
  std::unique_ptr<FolderLock> lock;
  on_first_rank(job_, [&] {
    detail::make_writable_folder(path_);
    lock = std::make_unique<FolderLock>(path_);
    remove_unfinished(path_);
  });
  return lock;
}

fs::path CheckpointDirectory::make_staging(std::int64_t step) const {
  const fs::path folder = folder_of(path_, step);
  const bool is_ours = !fs::exists(folder) || has_manifest(folder);
  D9D_CHECK(is_ours, IoError, "[checkpoint] expected no other folder or file ", folder.string(),
            ", got one without a manifest.json. Move it away, or save elsewhere.");
  const fs::path staging = cat(folder.string(), kUnfinished);
  detail::make_writable_folder(staging);
  return staging;
}

std::string CheckpointDirectory::complete(std::int64_t step, const JobTensors& tensors,
                                          const nlohmann::ordered_json& values, const Retention& retention) const {
  const fs::path folder = folder_of(path_, step), staging = cat(folder.string(), kUnfinished);
  const std::vector<RankNote> notes = read_rank_notes(staging, job_.num_ranks());
  check_shared_values(notes);
  write_manifest(staging, step, tensors, values, notes);
  remove_rank_notes(staging, job_.num_ranks());
  put_in_place(staging, folder);
  if (!retention.num_to_keep) return "";
  try {
    return rotate(path_, step, retention);
  } catch (const std::exception& error) {  // listing the folder failed; the new checkpoint is complete
    return error.what();
  }
}

void CheckpointDirectory::discard(std::int64_t step) const {
  const fs::path staging = path_ / cat(kPrefix, step, kUnfinished);
  std::error_code ignored;
  fs::remove_all(staging, ignored);
}

bool CheckpointDirectory::has_all_files(std::int64_t step, std::chrono::milliseconds patience) const {
  constexpr std::chrono::milliseconds kBetweenLooks{5};
  const fs::path staging = path_ / cat(kPrefix, step, kUnfinished);
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!has_rank_notes(staging, job_.num_ranks())) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

std::string CheckpointDirectory::save(std::int64_t step, const CheckpointState& state,
                                      const Retention& retention) const {
  job_.throw_if_failed();  // after a failed operation the tensors may hold arbitrary values
  const JobTensors all = job_tensors(state.tensors, job_);
  std::string not_removed;
  try {
    agreed(job_, [&] {
      const RankFilePlan plan(state.tensors, all, job_);
      write_rank_file(make_staging(step), job_.index(), plan, host_values_in(state.tensors),
                      state.rank_values ? state.rank_values() : nlohmann::json(),
                      SharedValues(state, all, job_).wait());
    });
    on_first_rank(job_, [&] { not_removed = complete(step, all, state.values, retention); });
  } catch (const std::exception&) {
    if (job_.index() == 0) discard(step);
    throw;
  }
  return not_removed;
}

fs::path CheckpointDirectory::folder_of(const fs::path& path, std::int64_t step) { return path / cat(kPrefix, step); }

std::map<std::int64_t, fs::path> CheckpointDirectory::complete() const { return complete_ones(path_); }

std::map<std::int64_t, fs::path> CheckpointDirectory::others() const {
  return named_by_step(path_, /*are_complete=*/false);
}

std::optional<SavedCheckpoint> CheckpointDirectory::newest() const {
  nlohmann::json found;
  on_first_rank(job_, [&] {
    const auto complete = complete_ones(path_);
    if (!complete.empty()) found = complete.rbegin()->second.string();
  });
  found = all_gather_object(found, job_).front();
  if (found.is_null()) return std::nullopt;
  std::optional<SavedCheckpoint> saved;
  agreed(job_, [&] { saved.emplace(found.get<std::string>()); });
  return saved;
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
const std::vector<nlohmann::ordered_json>& SavedCheckpoint::rank_values() const {
  return contents_->manifest.rank_values;
}

std::optional<SavedCheckpoint> checkpoint_at(const fs::path& path) {
  if (has_manifest(path) && !is_huggingface_directory(path)) return SavedCheckpoint(path);
  const auto complete = complete_ones(path);
  if (complete.empty()) return std::nullopt;
  return SavedCheckpoint(complete.rbegin()->second);
}

NamedTensors SavedCheckpoint::tensors(const std::string& prefix) const {
  const auto& saved = contents_->manifest.tensors;
  NamedTensors result;
  for (auto each = saved.lower_bound(prefix); each != saved.end() && each->first.starts_with(prefix); ++each) {
    result.names.push_back(each->first.substr(prefix.size()));
  }
  result.find = [&saved, prefix, files = std::make_shared<RankFiles>(contents_->folder)](
                    const std::string& name) -> std::optional<TensorSource> {
    const auto found = saved.find(prefix + name);
    if (found == saved.end()) return std::nullopt;
    TensorSource source = files->source_of(found->first, found->second);
    source.name = name;
    return source;
  };
  return result;
}

BytesRead SavedCheckpoint::load(const CheckpointState& state, const DeviceMesh& job, const std::string& prefix) const {
  const auto& saved = contents_->manifest.tensors;
  check_tensors(contents_->manifest, job_tensors(state.tensors, job), prefix, contents_->folder);
  std::vector<BoxRead> reads;
  agreed(job, [&] {
    RankFiles files(contents_->folder);
    for (const auto& [name, tensor] : state.tensors) {
      for (BoxRead& read : files.reads_of(name, tensor, saved.at(name))) reads.push_back(std::move(read));
    }
  });
  BytesRead bytes;
  agreed(job, [&] {
    const at::NoGradGuard no_grad;
    bytes = read_boxes(reads);
  });
  return bytes;
}

}  // namespace d9d
