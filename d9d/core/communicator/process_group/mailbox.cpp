#include "d9d/core/communicator/process_group/mailbox.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/exception.h>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string message_key(std::int64_t rank, std::int64_t number) { return cat("mail/", rank, "/", number); }

}  // namespace

Mailbox::Mailbox(c10d::Store& store, std::int64_t rank)
    : outgoing_(store.clone()), incoming_(store.clone()), rank_(rank) {}

void Mailbox::send(std::int64_t rank, const std::string& message) {
  const std::int64_t number = outgoing_->add(cat("mail/", rank), 1) - 1;
  outgoing_->set(message_key(rank, number), message);
}

std::optional<std::string> Mailbox::receive() {
  const std::string key = message_key(rank_, num_received_);
  try {
    incoming_->wait({key}, std::chrono::seconds(10));
  } catch (const c10::DistStoreError&) {  // nothing has come, or the store is gone: then this throws
    if (!incoming_->check({key})) return std::nullopt;
  }
  ++num_received_;
  return incoming_->get_to_str(key);
}

void Mailbox::leave(const std::string& key, const std::string& text) { outgoing_->set(key, text); }

std::optional<std::string> Mailbox::find(const std::string& key) {
  if (!outgoing_->check({key})) return std::nullopt;
  return outgoing_->get_to_str(key);
}

bool Mailbox::is_first(const std::string& key) { return outgoing_->add(key, 1) == 1; }

}  // namespace d9d
