// A link by memory of ranks on one machine. The sender copies into a slot of the receiver's inbox and raises a word
// there; the receiver waits for the word when it uses the message, copies it out and gives the slot back by a word of
// the sender. On CUDA copy engines move the bytes and streams wait: nothing is posted, and neither host waits.
//
// The block of each rank (PeerMemory) is its inbox: slots for messages of the other rank. Memory that both see has for
// each rank r at 256 r four words:
//
//   0       number of messages that have arrived from the other rank
//   64      number of this rank's messages that the other has taken out
//   128     number of the message from the other rank that this rank's stream has come to
//   192     number of the message of this rank for which its stream has come to where it waits for room
//
// and behind them the notes of a step (StepNotes): what each rank takes the messages to be, which no message says.
//
// A stream that waits for a word waits for ever if its writer is gone: LinkWatch ends such waits, and says for what.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "d9d/core/communicator/communicator.h"
#include "d9d/core/device/kept_tensors.h"
#include "d9d/core/device/side_stream.h"
#include "d9d/core/peer_memory/peer_memory.h"
#include "d9d/pipelining/executor/link_watch.h"
#include "d9d/pipelining/executor/neighbour_link.h"
#include "d9d/pipelining/executor/step_notes.h"

namespace d9d {

class PeerLink final : public NeighbourLink {
 public:
  // That a link keeps on each of its ranks, for messages of up to message_bytes.
  [[nodiscard]] static std::int64_t inbox_bytes(std::int64_t num_slots, std::int64_t message_bytes);

  // Collective over the two ranks. Inboxes are opened in the first step.
  [[nodiscard]] static PeerMemoryResult open(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes);
  // memory: by open(). watch: borrowed.
  PeerLink(std::shared_ptr<Communicator> ranks, std::shared_ptr<PeerMemory> memory, std::int64_t num_inbox_slots,
           LinkWatch& watch);
  ~PeerLink() override;

  void begin_step(std::int64_t num_bytes, const std::string& transfers) override;
  void send(const std::string& what, const std::vector<at::Tensor>& leaves) override;
  [[nodiscard]] std::vector<at::Tensor> receive(const std::string& what, const std::vector<at::Tensor>& like) override;
  void finish() override;  // memory that was sent may be written from then on
  void give_up() override { has_given_up_ = true; }

 private:
  [[nodiscard]] StreamEvent here() const { return StreamEvent::of_current_stream(ranks_->device()); }
  [[nodiscard]] std::int64_t slot_of(std::uint32_t number) const;  // offset of message 1, 2, ...
  void open_inbox(std::int64_t num_bytes);
  void compare_notes();
  void add_to_watch();
  // That the stream which raises a word to a value has come to its wait, and that the wait is over.
  struct Raised {
    std::int64_t word;
    std::uint32_t value;
  };
  void begin_wait(const std::string& what, Raised reached, Raised over);
  void end_waits() const;  // of this rank's streams; from any thread
  void let_streams_pass() const;

  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<PeerMemory> memory_;
  std::int64_t num_slots_;
  std::int64_t slot_bytes_ = 0;
  LinkWatch& watch_;
  SideStream sends_;
  KeptTensors unsent_;
  StreamEvent last_sent_;
  StreamEvent last_received_;
  std::optional<StepNotes> notes_;
  bool has_compared_ = true;  // the notes of the step
  bool has_given_up_ = false;
  int num_exceptions_ = std::uncaught_exceptions();  // when the link was made
  std::atomic<std::uint32_t> num_sent_ = 0;
  std::atomic<std::uint32_t> num_received_ = 0;
};

}  // namespace d9d
