#include "d9d/pipelining/executor/exchange_link.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "d9d/pipelining/executor/message_layout.h"

namespace d9d {
namespace {

at::Tensor empty_message(const std::vector<at::Tensor>& like, c10::Device device) {
  if (like.size() == 1) return at::empty(like.front().sizes(), like.front().options().device(device));
  return at::empty({message_bytes(like)}, at::TensorOptions(device).dtype(at::kByte));
}

at::Tensor packed(const std::vector<at::Tensor>& leaves, c10::Device device) {
  if (leaves.size() == 1) return contiguous_values(leaves.front());
  at::Tensor message = empty_message(leaves, device);
  const std::vector<at::Tensor> parts = parts_of(message, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) parts[i].copy_(leaves[i]);
  return message;
}

}  // namespace

ExchangeLink::ExchangeLink(std::shared_ptr<Communicator> to_send, std::shared_ptr<Communicator> to_receive,
                           std::int64_t num_inbox_slots)
    : to_send_(std::move(to_send)),
      to_receive_(std::move(to_receive)),
      device_(to_send_->device()),
      num_inbox_slots_(std::max<std::int64_t>(num_inbox_slots, 1)),
      sends_(device_),
      receives_(device_) {}

void ExchangeLink::send(const std::string& /*what*/, const std::vector<at::Tensor>& leaves) {
  while (std::ssize(on_the_way_) >= num_inbox_slots_) {
    on_the_way_.front().work.wait();
    on_the_way_.pop_front();
  }
  unsent_.wait_for_all_but(static_cast<std::size_t>(num_inbox_slots_ - 1));  // leaves room for this message
  Sent sent{.message = packed(leaves, device_), .work = {}};
  const StreamEvent has_left = sends_.run([&] {
    sent.work = to_send_->exchange({{PointToPoint::Direction::kSend, sent.message, /*peer=*/1}});
    if (!device_.is_cpu()) sent.work.wait();
  });
  unsent_.keep({sent.message}, has_left);
  if (device_.is_cpu()) on_the_way_.push_back(std::move(sent));
}

std::vector<at::Tensor> ExchangeLink::receive(const std::string& /*what*/, const std::vector<at::Tensor>& like) {
  at::Tensor message = empty_message(like, device_);
  const StreamEvent arrived = receives_.run([&] {
    keep_for_current_stream(message);
    to_receive_->exchange({{PointToPoint::Direction::kReceive, message, /*peer=*/0}}).wait();
  });
  arrived.wait();
  return like.size() == 1 ? std::vector<at::Tensor>{std::move(message)} : parts_of(message, like);
}

void ExchangeLink::finish() {
  for (; !on_the_way_.empty(); on_the_way_.pop_front()) on_the_way_.front().work.wait();
  unsent_.wait_for_all();
}

}  // namespace d9d
