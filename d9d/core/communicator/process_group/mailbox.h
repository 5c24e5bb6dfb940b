// Messages between ranks through the store of the job, independent of all other connections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "d9d/core/communicator/process_group/process_group.h"

namespace d9d {

// A rank's mailbox. It has its own connection to the store.
class Mailbox {
 public:
  Mailbox(c10d::Store& store, std::int64_t rank);

  // All functions are thread-safe and throw c10::Error if the store is gone.
  void send(std::int64_t rank, const std::string& message);
  [[nodiscard]] std::optional<std::string> receive();  // the next message to this rank, if any

  // Publishes a text under a key for the other ranks.
  void leave(const std::string& key, const std::string& text);
  [[nodiscard]] std::optional<std::string> find(const std::string& key);
  // True for the first rank that calls it with this key.
  [[nodiscard]] bool is_first(const std::string& key);

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::int64_t rank_;
  std::int64_t num_received_ = 0;
};

}  // namespace d9d
