#include "d9d/core/communicator/process_group/mailbox.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "d9d/base/check.h"

namespace d9d {
namespace {

std::string message_key(std::int64_t rank, std::int64_t number) { return cat("mail/", rank, "/", number); }

// How long an unresponsive store host is still considered alive.
constexpr std::chrono::seconds kStoreTimeout{30};

}  // namespace

Mailbox::Mailbox(c10d::Store& store, std::int64_t rank) : store_(store.clone()), rank_(rank) {
  store_->setTimeout(kStoreTimeout);
}

void Mailbox::send(std::int64_t rank, const std::string& message) {
  const std::int64_t number = store_->add(cat("mail/", rank), 1) - 1;
  store_->set(message_key(rank, number), message);
}

std::optional<std::string> Mailbox::receive() {
  std::optional<std::string> message = find(message_key(rank_, num_received_));
  if (message) ++num_received_;
  return message;
}

void Mailbox::leave(const std::string& key, const std::string& text) { store_->set(key, text); }

std::optional<std::string> Mailbox::find(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return store_->get_to_str(key);
}

bool Mailbox::is_first(const std::string& key) { return store_->add(key, 1) == 1; }

}  // namespace d9d
