#include "d9d/pipelining/executor/stage_links.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/core/error/error_place.h"
#include "d9d/pipelining/executor/exchange_link.h"
#include "d9d/pipelining/executor/peer_link.h"

namespace d9d {
namespace {

// Returns the pairs of ranks with neighbouring stages, the lower rank first. All ranks open their links in this order.
std::set<std::pair<std::int64_t, std::int64_t>> neighbours(const StagePlacement& stages) {
  std::set<std::pair<std::int64_t, std::int64_t>> pairs;
  for (std::int64_t stage = 1; stage < stages.num_stages(); ++stage) {
    const auto [low, high] = std::minmax({stages.rank_of({stage - 1}), stages.rank_of({stage})});
    if (low != high) pairs.emplace(low, high);
  }
  return pairs;
}

std::string text_of(const Transfer& transfer) {
  return cat(transfer.is_forward() ? "the output" : "the gradients", " of stage ", transfer.source.value,
             ", microbatch ", transfer.microbatch.value);
}

std::shared_ptr<Communicator> link_communicator(World& world, const std::vector<std::int64_t>& ranks, std::int64_t from,
                                                std::int64_t to, std::int64_t own) {
  return world.communicator({.name = cat("pipeline ", from, " to ", to),
                             .ranks = {ranks[static_cast<std::size_t>(from)], ranks[static_cast<std::size_t>(to)]},
                             .index = from == own ? 0 : 1});
}

}  // namespace

StageLinks::StageLinks(const DistContext& context, const StagePlacement& stages, const StageLinksConfig& config)
    : stages_(stages) {
  const DeviceMesh pipeline = context.mesh(MeshDomain::kRegular).slice({"pp"});
  rank_ = pipeline.index();
  for (const auto& [low, high] : neighbours(stages)) {
    if (low != rank_ && high != rank_) continue;
    const std::int64_t peer = low == rank_ ? high : low;
    links_.emplace(peer, open(context, pipeline.ranks(), peer, config));
  }
}

std::unique_ptr<NeighbourLink> StageLinks::open(const DistContext& context, const std::vector<std::int64_t>& ranks,
                                                std::int64_t peer, const StageLinksConfig& config) {
  World& world = *context.world();
  const auto [low, high] = std::minmax({rank_, peer});
  const auto up = link_communicator(world, ranks, low, high, rank_);
  PeerMemoryResult opened{.memory = nullptr, .reason = "as configured"};
  if (config.method != ExchangeMethod::kCommunicator) opened = PeerLink::open(up, /*num_bytes=*/1);
  if (opened.memory != nullptr) {
    if (watch_ == nullptr) watch_ = std::make_unique<LinkWatch>(context.world());
    return std::make_unique<PeerLink>(up, std::move(opened.memory), config.num_inbox_slots, *watch_);
  }
  D9D_CHECK(config.method != ExchangeMethod::kCopyEngine, ConfigError, "[pipelining::executor] expected ranks ",
            ranks[static_cast<std::size_t>(low)], " and ", ranks[static_cast<std::size_t>(high)],
            " that can write each other's memory for trainer.pipelining.messages = copy_engine, got a pair where ",
            opened.reason, ". Use \"auto\" or \"communicator\".");
  const auto down = link_communicator(world, ranks, high, low, rank_);
  const bool is_low = rank_ == low;
  return std::make_unique<ExchangeLink>(is_low ? up : down, is_low ? down : up, config.num_inbox_slots);
}

void StageLinks::begin_step(const std::map<std::int64_t, LinkStep>& steps) {
  const at::NoGradGuard no_grad;
  for (const auto& [peer, link] : links_) {  // in the order of opening, so that no ranks wait in a circle
    const auto found = steps.find(peer);
    const LinkStep step = found == steps.end() ? LinkStep{} : found->second;
    link->begin_step(step.largest_bytes, step.transfers);
  }
}

NeighbourLink& StageLinks::link_for(const Transfer& transfer) {
  const DirectedLink link = *link_of(transfer, stages_);
  return *links_.at(link.from == rank_ ? link.to : link.from);
}

void StageLinks::send(const Transfer& transfer, const std::vector<at::Tensor>& leaves) {
  with_error_place(cat("sending ", text_of(transfer)), [&] {
    const at::NoGradGuard no_grad;
    link_for(transfer).send(text_of(transfer), leaves);
  });
}

std::vector<at::Tensor> StageLinks::receive(const Transfer& transfer, const std::vector<at::Tensor>& like) {
  return with_error_place(cat("receiving ", text_of(transfer)), [&] {
    const at::NoGradGuard no_grad;
    return link_for(transfer).receive(text_of(transfer), like);
  });
}

void StageLinks::finish() {
  for (const auto& [peer, link] : links_) link->finish();
}

void StageLinks::close() {
  for (const auto& [peer, link] : links_) link->close();  // in the order of opening, as begin_step()
}

void StageLinks::give_up() {
  for (const auto& [peer, link] : links_) link->give_up();
}

}  // namespace d9d
