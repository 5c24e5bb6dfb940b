// A link that uses memory shared by ranks on one machine. The sender copies a message into a receive buffer (slot) of
// the receiver's inbox and sets a flag of the receiver. When the receiver uses the message, it waits for the flag,
// copies the message out, and sets a flag of the sender, which frees the buffer. On CUDA copy engines move the bytes
// and streams wait for flags: no receive is posted, and neither host waits.
//
// The PeerMemory block of each rank is its inbox, which holds receive buffers for the other rank's messages. The shared
// host memory has four flags (words) for each rank r, which begin at byte 256 r:
//
//   0       number of messages that the other rank has copied into this rank's inbox
//   64      number of this rank's messages that the other rank has copied out of the other rank's inbox
//   128     number of the last message that this rank's stream has begun to wait for
//   192     number of the last message for which this rank's stream has begun to wait for a free receive buffer
//
// After the flags come the StepNotes, by which the two ranks compare the transfers that they expect in a step: a
// message does not carry its shapes and dtypes.
//
// A stream would wait for ever for a flag if the rank that sets it is gone: LinkWatch ends such waits and reports what
// the stream waited for.
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
#include "d9d/core/peer_memory/link_watch.h"
#include "d9d/core/peer_memory/peer_memory.h"
#include "d9d/pipelining/executor/neighbour_link.h"
#include "d9d/pipelining/executor/step_notes.h"

namespace d9d {

class PeerLink final : public NeighbourLink {
 public:
  // Returns the bytes of the inbox that a link keeps on each of its ranks, for messages of up to message_bytes.
  [[nodiscard]] static std::int64_t inbox_bytes(std::int64_t num_slots, std::int64_t message_bytes);

  // Collective over the two ranks. Opens peer memory with an inbox of num_bytes on each rank. begin_step() replaces it
  // with a larger one if messages need it.
  [[nodiscard]] static PeerMemoryResult open(const std::shared_ptr<Communicator>& ranks, std::int64_t num_bytes);
  // memory: from open(). watch: borrowed.
  PeerLink(std::shared_ptr<Communicator> ranks, std::shared_ptr<PeerMemory> memory, std::int64_t num_inbox_slots,
           LinkWatch& watch);
  ~PeerLink() override;

  void begin_step(std::int64_t num_bytes, const std::string& transfers) override;
  void send(const std::string& what, const std::vector<at::Tensor>& leaves) override;
  [[nodiscard]] std::vector<at::Tensor> receive(const std::string& what, const std::vector<at::Tensor>& like) override;
  void finish() override;  // tensors that were sent may be written afterwards
  void close() override;
  void give_up() override { has_given_up_ = true; }

 private:
  [[nodiscard]] StreamEvent here() const { return StreamEvent::of_current_stream(ranks_->device()); }
  [[nodiscard]] std::int64_t slot_of(std::uint32_t number) const;  // byte offset in an inbox; numbers begin at 1
  void open_inbox(std::int64_t slot_bytes);                        // collective, after close()
  void compare_notes();
  void add_to_watch();
  // A flag and a value that it must reach. begin_wait() takes one that shows the start of a wait, and one that shows
  // its end.
  struct Raised {
    std::int64_t word;
    std::uint32_t value;
  };
  void begin_wait(const std::string& what, Raised reached, Raised over);
  void end_waits() const;  // ends the waits of this rank's streams; from any thread
  void let_streams_pass() const;

  std::shared_ptr<Communicator> ranks_;
  std::shared_ptr<PeerMemory> memory_;  // null: closed
  std::int64_t num_slots_;
  std::int64_t slot_bytes_ = 0;
  LinkWatch& watch_;
  SideStream sends_;
  KeptTensors unsent_;
  StreamEvent last_sent_;
  StreamEvent last_received_;
  std::optional<StepNotes> notes_;
  bool has_compared_ = true;  // whether the notes of this step were compared
  bool has_given_up_ = false;
  int num_exceptions_ = std::uncaught_exceptions();  // uncaught exceptions at construction
  std::atomic<std::uint32_t> num_sent_ = 0;
  std::atomic<std::uint32_t> num_received_ = 0;
};

}  // namespace d9d
