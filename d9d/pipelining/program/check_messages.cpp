#include <map>
#include <optional>
#include <vector>

#include "d9d/base/check.h"
#include "d9d/pipelining/program/check_program.h"
#include "d9d/pipelining/program/transfer.h"

namespace d9d::detail {
namespace {

using Position = std::optional<std::size_t>;

// Positions at which a transfer between ranks is computed, sent and received, in the programs of its two ranks.
struct TransferPlaces {
  Position made;
  Position sent;
  Position received;
};

class MessageCheck {
 public:
  explicit MessageCheck(const PipelineProgram& program) : program_(program) {}

  void run() {
    for (std::size_t rank = 0; rank < program_.ranks.size(); ++rank) {
      for (std::size_t position = 0; position < program_.ranks[rank].size(); ++position) {
        const Action& action = program_.ranks[rank][position];
        if (const auto* message = std::get_if<MessageAction>(&action)) visit(*message, rank, position);
        for (const auto& part : compute_parts(action)) visit(part, rank, position);
      }
    }
    check_complete();
    for (const auto& [link, order] : orders_) check_order(link, order);
  }

 private:
  struct LinkOrder {
    std::vector<std::pair<Transfer, std::size_t>> sent;  // with positions in the sender's program
    std::vector<std::pair<Transfer, std::size_t>> received;
  };

  void expect(bool condition, std::size_t rank, std::size_t position, const std::string& rule) const {
    D9D_CHECK(condition, ConfigError, "[pipelining::validate] ", place_text(program_, rank, position), ": expected ",
              rule, ". Correct the messages; insert_messages() places them.");
  }

  void visit(const ComputeAction& part, std::size_t rank, std::size_t position) {
    const std::int64_t num_stages = program_.stages.num_stages();
    if (const auto input = input_of(part, num_stages); input && link_of(*input, program_.stages)) {
      expect(places_[*input].received.has_value(), rank, position,
             to_text(receive_of(*input)) + " before " + to_text(part) + ", which uses it");
    }
    if (const auto output = output_of(part, num_stages); output && link_of(*output, program_.stages)) {
      places_[*output].made = position;
    }
  }

  void visit(const MessageAction& message, std::size_t rank, std::size_t position) {
    const Transfer transfer = transfer_of(message);
    const auto is_stage = [&](StageIndex stage) {
      return stage.value >= 0 && stage.value < program_.stages.num_stages();
    };
    expect(is_stage(transfer.source) && is_stage(transfer.target), rank, position,
           "a neighbouring stage to exchange with");
    expect(transfer.microbatch.value >= 0 && transfer.microbatch.value < program_.num_microbatches, rank, position,
           cat("one of ", program_.num_microbatches, " microbatches"));
    expect(program_.stages.rank_of(stage_of(message)) == static_cast<std::int64_t>(rank), rank, position,
           "a stage of this rank");
    const auto link = link_of(transfer, program_.stages);
    expect(link.has_value(), rank, position,
           cat("no message between stages ", transfer.source.value, " and ", transfer.target.value,
               ", which share the rank"));
    TransferPlaces& places = places_[transfer];
    Position& place = is_send(message) ? places.sent : places.received;
    expect(!place, rank, position, to_text(message) + " once, got it twice");
    expect(!is_send(message) || places.made, rank, position, "its transfer to be computed before");
    place = position;
    LinkOrder& order = orders_[*link];
    (is_send(message) ? order.sent : order.received).emplace_back(transfer, position);
  }

  void check_complete() const {
    for (const auto& [transfer, places] : places_) {
      const auto link = link_of(transfer, program_.stages);
      D9D_CHECK(places.sent && places.received, ConfigError, "[pipelining::validate] rank ",
                places.sent ? link->to : link->from, " lacks ",
                to_text(places.sent ? receive_of(transfer) : send_of(transfer)), " (stage ",
                (places.sent ? transfer.target : transfer.source).value, ", microbatch ", transfer.microbatch.value,
                "): expected each transfer between ranks to be sent and received. Correct the messages; "
                "insert_messages() places them.");
    }
  }

  void check_order(const DirectedLink& link, const LinkOrder& order) const {
    for (std::size_t i = 0; i < order.received.size(); ++i) {
      const auto& [received, position] = order.received[i];
      const auto& sent = order.sent[i].first;
      expect(received == sent, static_cast<std::size_t>(link.to), position,
             cat("to receive messages in the order in which rank ", link.from, " sends them: message ", i,
                 " of the link is ", to_text(send_of(sent))));
    }
  }

  const PipelineProgram& program_;
  std::map<Transfer, TransferPlaces> places_;
  std::map<DirectedLink, LinkOrder> orders_;
};

}  // namespace

void check_messages(const PipelineProgram& program) { MessageCheck(program).run(); }

}  // namespace d9d::detail
