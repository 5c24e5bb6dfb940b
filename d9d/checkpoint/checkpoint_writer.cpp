#include "d9d/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/io/available_memory.h"
#include "d9d/checkpoint/shared_values.h"
#include "d9d/core/collectives/gather.h"

namespace d9d {
namespace detail {

struct SaveError {
  std::string text = {};    // empty: no error
  bool is_refused = false;  // EndedSave::is_refused
};

}  // namespace detail

namespace {

using detail::SaveError;

constexpr std::chrono::seconds kPatience{10};  // how long the destructor waits for the files of other ranks

SaveError error_of(const std::function<void()>& work) {
  try {
    work();
    return {};
  } catch (const UnequalRanksError& error) {
    return {.text = error.what(), .is_refused = true};
  } catch (const std::exception& error) {
    return {.text = error.what()};
  }
}

std::shared_future<SaveError> in_thread(std::function<void()> work) {
  return std::async(std::launch::async, [work = std::move(work)] { return error_of(work); }).share();
}

std::shared_future<SaveError> run_now(const std::function<void()>& work) {
  std::promise<SaveError> result;
  result.set_value(error_of(work));
  return result.get_future().share();
}

bool is_ready(const std::shared_future<SaveError>& result) {
  return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

struct CheckpointWriter::Save {
  enum class Phase { kFiles, kManifest };
  std::int64_t step;
  std::chrono::steady_clock::time_point began;
  Retention retention;
  nlohmann::ordered_json values;
  Phase phase = Phase::kFiles;
  std::shared_future<SaveError> work = {};  // this rank's work in the phase, and its error
  std::string not_removed = {};             // written by the thread of `work`, read when it has ended
};

CheckpointWriter::CheckpointWriter(CheckpointDirectory directory, c10::Device device, std::int64_t ranks_of_host)
    : directory_(std::move(directory)), device_(device), ranks_of_host_(ranks_of_host), copies_(device) {}

CheckpointWriter::~CheckpointWriter() {
  if (save_ == nullptr) return;
  const bool is_written =
      save_->work.valid() && save_->work.get().text.empty();  // waits for the thread, which reads memory of this object
  if (!is_written || save_->phase == Save::Phase::kManifest || directory_.job().index() != 0) return;
  if (!directory_.has_all_files(save_->step, kPatience)) return;
  (void)error_of([this] { directory_.complete(save_->step, tensors_, save_->values, save_->retention); });
}

std::unique_ptr<PinnedMemory> CheckpointWriter::make_memory(std::int64_t num_bytes) const {
  constexpr std::int64_t kShare = 2;  // at most half of the available memory is used
  if (num_bytes > available_memory() / kShare / ranks_of_host_) return nullptr;
  try {
    return std::make_unique<PinnedMemory>(num_bytes, device_);
  } catch (const StateError&) {
    return nullptr;
  }
}

void CheckpointWriter::prepare(const std::map<std::string, DTensor>& tensors) {
  D9D_ASSERT(save_ == nullptr, "memory of a save in flight is replaced");
  tensors_ = job_tensors(tensors, directory_.job());
  plan_ = std::make_unique<RankFilePlan>(tensors, tensors_, directory_.job());
  memory_.reset();
  writes_at_once_.reset();
  memory_in_the_making_ =
      std::async(std::launch::async, [this, num_bytes = plan_->num_bytes()] { return make_memory(num_bytes); });
}

// Enqueues copies of this rank's boxes into the host memory.
void CheckpointWriter::copy(const CheckpointState& state) {
  const at::NoGradGuard no_grad;
  const auto copy_tensors = [&](bool are_buffers) {
    for (const PlannedBox& each : plan_->boxes()) {
      const std::string& name = each.owned.tensor;
      if (state.buffers.contains(name) != are_buffers) continue;
      const at::Tensor values = values_of(each.owned, state.tensors.at(name));
      memory_->tensor(each.offset, each.owned.box.sizes, each.dtype).copy_(values, /*non_blocking=*/true);
    }
  };
  copy_tensors(/*are_buffers=*/true);  // on the current stream
  copied_ = copies_.run([&] { copy_tensors(/*are_buffers=*/false); });
}

// Collective. Waits for the host memory, and agrees on whether all ranks have it.
void CheckpointWriter::receive_memory() {
  memory_ = memory_in_the_making_.get();
  const auto all = all_gather_object(memory_ != nullptr, directory_.job());
  writes_at_once_ = !std::ranges::all_of(all, [](const nlohmann::json& has_memory) { return has_memory.get<bool>(); });
  if (*writes_at_once_) memory_.reset();
}

void CheckpointWriter::begin(std::int64_t step, const CheckpointState& state, const Retention& retention) {
  D9D_ASSERT(save_ == nullptr, "a save begins while another one is in flight");
  directory_.job().throw_if_failed();  // after a failed operation the tensors may hold arbitrary values
  if (plan_ == nullptr || !plan_->is_of(state.tensors)) prepare(state.tensors);
  if (memory_in_the_making_.valid()) receive_memory();
  save_ = std::make_unique<Save>(
      Save{.step = step, .began = std::chrono::steady_clock::now(), .retention = retention, .values = state.values});
  const auto shared = std::make_shared<const SharedValues>(state, tensors_, directory_.job(), copies_);
  const auto write = [this, step, shared, rank_values = state.rank_values](const BoxValues& values) {
    const std::filesystem::path folder = directory_.make_staging(step);
    write_rank_file(folder, directory_.job().index(), *plan_, values, rank_values ? rank_values() : nlohmann::json(),
                    shared->wait());
  };
  if (memory_ == nullptr) {
    save_->work = run_now([&] { write(host_values_in(state.tensors)); });
    return;
  }
  copy(state);
  save_->work = in_thread([this, write, copied = copied_] {
    copied.synchronize();
    write([this](const PlannedBox& each) { return memory_->tensor(each.offset, each.owned.box.sizes, each.dtype); });
  });
}

SaveProgress CheckpointWriter::progress() const {
  if (save_ == nullptr || !save_->work.valid()) return {};
  if (!is_ready(save_->work)) return {.num_working = 1};
  return {.num_failed = save_->work.get().text.empty() ? 0 : 1};
}

// Starts the second phase: the first rank completes the checkpoint from the files of all ranks; the other ranks have no
// work.
void CheckpointWriter::start_commit() {
  save_->phase = Save::Phase::kManifest;
  save_->work = {};
  if (directory_.job().index() != 0) return;
  save_->work = in_thread(
      [this] { save_->not_removed = directory_.complete(save_->step, tensors_, save_->values, save_->retention); });
}

EndedSave CheckpointWriter::ended(const std::string& error, bool is_refused) {
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - save_->began;
  const EndedSave result{.step = save_->step,
                         .error = error,
                         .is_refused = is_refused,
                         .seconds = time.count(),
                         .not_removed = save_->not_removed};
  if (!error.empty() && directory_.job().index() == 0) directory_.discard(save_->step);
  save_.reset();
  return result;
}

std::optional<EndedSave> CheckpointWriter::advance(const SaveProgress& all) {
  if (save_ == nullptr || all.num_working > 0) return std::nullopt;
  if (all.num_failed > 0) return finish();
  if (save_->phase == Save::Phase::kManifest) return ended("");
  start_commit();
  return std::nullopt;
}

std::optional<EndedSave> CheckpointWriter::finish() {
  while (save_ != nullptr) {
    const SaveError own = save_->work.valid() ? save_->work.get() : SaveError();
    const std::vector<nlohmann::json> errors = all_gather_object({own.text, own.is_refused}, directory_.job());
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
      const auto text = errors[rank].at(0).get<std::string>();
      if (text.empty()) continue;
      const bool is_refused = errors[rank].at(1).get<bool>();
      return ended(is_refused ? text : cat(text, " (rank ", rank, ")"), is_refused);
    }
    if (save_->phase == Save::Phase::kManifest) return ended("");
    start_commit();
  }
  return std::nullopt;
}

}  // namespace d9d
