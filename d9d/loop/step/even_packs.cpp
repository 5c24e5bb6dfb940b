#include "d9d/loop/step/even_packs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/loop/step/microbatch_numbers.h"

namespace d9d {

EvenPacks::EvenPacks(const DistContext& context, PackReader& packs, std::string data, PackReader* spare)
    : context_(context),
      packs_(packs),
      data_(std::move(data)),
      side_(context.device()),
      start_(packs.stream().state()) {
  const MicrobatchPack* first = packs_.peek();
  if ((first == nullptr || first->empty()) && spare != nullptr) first = spare->peek();
  if (first != nullptr && !first->empty()) filler_ = first->front()->copy_of_batch();
  packs_.rewind(start_);  // frees the pack
}

void EvenPacks::rewind() {
  packs_.rewind(start_);
  index_ = 0;
}

EvenPack EvenPacks::next(RankVotes votes) {
  const nlohmann::json before = packs_.stream().state();
  auto microbatches = packs_.next();
  EvenPack next{.pack = {.name = cat("pack ", index_, " of ", data_),
                         .index = index_,
                         .microbatches = microbatches ? std::move(*microbatches) : MicrobatchPack()}};
  const auto own = std::ssize(next.pack.microbatches);
  next.pack.num_counted = static_cast<std::size_t>(own);
  votes.next_microbatches = microbatches ? own + 1 : 0;  // a pack may be empty before the end of the data
  const JobVotes all = count_votes(context_, side_, votes);
  next.signal = all.signal;
  next.stops = all.stops;
  std::int64_t most = votes.next_microbatches;
  for (const std::int64_t each : all.next_microbatches) most = std::max(most, each);
  next.is_end = most == 0;
  if (next.stops || next.is_end) {
    next.pack.microbatches.clear();
    if (microbatches) packs_.rewind(before);  // the pack is left for a job that continues
    return next;
  }
  check_equal(all, votes.next_microbatches);
  ++index_;
  complete(next.pack, static_cast<std::size_t>(most - 1));
  return next;
}

void EvenPacks::check_equal(const JobVotes& votes, std::int64_t own) const {
  if (votes.next_microbatches.empty()) return;
  for (const std::int64_t rank : context_.mesh(MeshDomain::kBatch).slice({"pp", "cp", "tp"}).ranks()) {
    const std::int64_t other = votes.next_microbatches[static_cast<std::size_t>(rank)];
    D9D_CHECK(other == own, StateError, "[loop::data] expected as many microbatches on all ranks that compute each ",
              "together, got ", own - 1, " on this rank and ", other - 1, " on rank ", rank, " (-1: no pack) in pack ",
              index_, " of ", data_, ". Divide samples by context.data_parallel_rank().");
  }
}

void EvenPacks::complete(ForwardPack& pack, std::size_t num_microbatches) const {
  MicrobatchPack& own = pack.microbatches;
  const auto of_stream = own.empty() ? std::vector<std::int64_t>() : packs_.stream().microbatch_numbers();
  const auto numbers = microbatch_numbers(context_, of_stream, own.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) own[i]->number = numbers[i];
  D9D_CHECK(filler_ != nullptr || own.size() == num_microbatches, StateError, "[loop::data] expected a microbatch of ",
            data_, " on each rank, got none on this one. Give it more samples, or the job fewer data-parallel ranks.");
  while (own.size() < num_microbatches) own.push_back(filler_->copy_of_batch());
  for (std::size_t i = 0; i < own.size(); ++i) {
    in_microbatch_of(pack, i, "in build_forward_inputs", [&] { own[i]->build_inputs(); });
  }
}

}  // namespace d9d
