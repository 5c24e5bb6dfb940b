#include "d9d/pipelining/executor/stage_links.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "d9d/base/check.h"
#include "d9d/base/rounding.h"
#include "d9d/core/error/error_place.h"

namespace d9d {
namespace {

constexpr std::int64_t kAlignmentBytes = 16;  // of a leaf in a message

std::set<DirectedLink> links_between(const StagePlacement& stages) {
  std::set<DirectedLink> links;
  for (std::int64_t stage = 1; stage < stages.num_stages(); ++stage) {
    const std::int64_t before = stages.rank_of({stage - 1}), after = stages.rank_of({stage});
    if (before == after) continue;
    links.insert({.from = before, .to = after});
    links.insert({.from = after, .to = before});
  }
  return links;
}

std::string text_of(const Transfer& transfer) {
  return cat(transfer.is_forward() ? "the output" : "the gradients", " of stage ", transfer.source.value,
             ", microbatch ", transfer.microbatch.value);
}

std::int64_t packed_bytes(const std::vector<at::Tensor>& leaves) {
  std::int64_t bytes = 0;
  for (const at::Tensor& leaf : leaves) {
    bytes += round_up(static_cast<std::int64_t>(leaf.numel() * leaf.element_size()), kAlignmentBytes);
  }
  return bytes;
}

// The part of a message that holds each leaf, in its shape and dtype.
std::vector<at::Tensor> parts_of(const at::Tensor& message, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> parts;
  std::int64_t begin = 0;
  for (const at::Tensor& leaf : like) {
    const auto bytes = static_cast<std::int64_t>(leaf.numel() * leaf.element_size());
    parts.push_back(message.narrow(0, begin, bytes).view(leaf.scalar_type()).view(leaf.sizes()));
    begin += round_up(bytes, kAlignmentBytes);
  }
  return parts;
}

at::Tensor empty_message(const std::vector<at::Tensor>& like, c10::Device device) {
  if (like.size() == 1) return at::empty(like.front().sizes(), like.front().options().device(device));
  return at::empty({packed_bytes(like)}, at::TensorOptions(device).dtype(at::kByte));
}

at::Tensor packed(const std::vector<at::Tensor>& leaves, c10::Device device) {
  if (leaves.size() == 1) return leaves.front().contiguous();
  at::Tensor message = empty_message(leaves, device);
  const std::vector<at::Tensor> parts = parts_of(message, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) parts[i].copy_(leaves[i]);
  return message;
}

}  // namespace

StageLinks::StageLinks(const DistContext& context, const StagePlacement& stages, std::int64_t num_inbox_slots)
    : stages_(stages), device_(context.device()), num_inbox_slots_(num_inbox_slots) {
  const DeviceMesh pipeline = context.mesh(MeshDomain::kRegular).slice({"pp"});
  const std::vector<std::int64_t> ranks = pipeline.ranks();
  for (const DirectedLink& link : links_between(stages)) {
    if (link.from != pipeline.index() && link.to != pipeline.index()) continue;
    const auto group = context.world()->communicator(
        {.name = cat("pipeline ", link.from, " to ", link.to),
         .ranks = {ranks[static_cast<std::size_t>(link.from)], ranks[static_cast<std::size_t>(link.to)]},
         .index = link.from == pipeline.index() ? 0 : 1});
    links_.emplace(link, Link{.ranks = group, .stream = SideStream(device_)});
  }
}

StageLinks::Link& StageLinks::link_for(const Transfer& transfer) { return links_.at(*link_of(transfer, stages_)); }

void StageLinks::send(const Transfer& transfer, const std::vector<at::Tensor>& leaves) {
  with_error_place(cat("sending ", text_of(transfer)), [&] {
    const at::NoGradGuard no_grad;
    Link& link = link_for(transfer);
    while (std::ssize(link.on_the_way) >= std::max<std::int64_t>(num_inbox_slots_, 1)) {
      link.on_the_way.front().work.wait();
      link.on_the_way.pop_front();
    }
    Sent sent{.message = packed(leaves, device_), .work = {}};
    (void)link.stream.run([&] {
      keep_for_current_stream(sent.message);
      sent.work = link.ranks->exchange({{PointToPoint::Direction::kSend, sent.message, /*peer=*/1}});
      if (!device_.is_cpu()) sent.work.wait();
    });
    if (device_.is_cpu()) link.on_the_way.push_back(std::move(sent));
  });
}

std::vector<at::Tensor> StageLinks::receive(const Transfer& transfer, const std::vector<at::Tensor>& like) {
  return with_error_place(cat("receiving ", text_of(transfer)), [&] {
    const at::NoGradGuard no_grad;
    Link& link = link_for(transfer);
    at::Tensor message = empty_message(like, device_);
    const StreamEvent arrived = link.stream.run([&] {
      keep_for_current_stream(message);
      link.ranks->exchange({{PointToPoint::Direction::kReceive, message, /*peer=*/0}}).wait();
    });
    arrived.wait();
    return like.size() == 1 ? std::vector<at::Tensor>{std::move(message)} : parts_of(message, like);
  });
}

void StageLinks::finish() {
  for (auto& [link, state] : links_) {
    for (; !state.on_the_way.empty(); state.on_the_way.pop_front()) state.on_the_way.front().work.wait();
  }
}

}  // namespace d9d
