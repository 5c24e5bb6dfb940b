#include "d9d/core/launch/rendezvous.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <future>
#include <numeric>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "d9d/base/check.h"
#include "d9d/core/communicator/peer_failed_error.h"
#include "d9d/core/communicator/process_group/closed_connections.h"
#include "d9d/core/communicator/process_group/gloo_group.h"
#include "d9d/core/communicator/process_group/nccl_group.h"
#include "d9d/core/communicator/process_group/process_group_backend.h"
#include "d9d/core/communicator/process_group/store_barrier.h"
#include "d9d/core/communicator/process_group/watchdog.h"
#include "d9d/core/launch/tcp.h"

namespace d9d {
namespace {

using Clock = std::chrono::steady_clock;
using Store = c10::intrusive_ptr<c10d::Store>;

std::vector<std::int64_t> all_ranks(const RankEnvironment& here) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(here.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// Logs lines about a wait: the first after `silence`, then one a minute.
class WaitLines {
 public:
  WaitLines(const RendezvousOptions& options, std::function<std::string()> text)
      : log_(options.log), text_(std::move(text)), next_(Clock::now() + options.silence) {}

  void write_if_due() {
    if (Clock::now() < next_) return;
    next_ = Clock::now() + std::chrono::minutes(1);
    if (const std::string text = text_(); !text.empty()) log_.warning(text);
  }

 private:
  const Logger log_;
  const std::function<std::string()> text_;  // empty: another rank of this machine logs it
  Clock::time_point next_;
};

// One rank that joins the job.
class Rendezvous {
 public:
  Rendezvous(const RankEnvironment& here, const RendezvousOptions& options)
      : here_(here),
        options_(options),
        deadline_(Clock::now() + options.timeout),
        place_(cat(here.master_address, ":", here.master_port)),
        who_(cat("[core::rendezvous] rank ", here.rank, " of ", here.world_size, " ")),
        waits_(cat(who_, "(so say ", here.variables, " of the environment) waits at ", place_, " for ")) {}

  // Opens the store of the job. `own_address` receives the address of this machine.
  [[nodiscard]] Store open_store(std::string& own_address) const {
    c10d::TCPStoreOptions options;
    options.port = here_.master_port;
    options.waitWorkers = false;
    options.isServer = is_host();
    std::unique_ptr<ListeningSocket> listening;
    if (is_host()) {
      listening = listen();
      options.masterListenFd = listening->release();
    }
    // True for the lowest rank of this machine other than the rank that the others wait for.
    const bool says_so = here_.local_rank == (here_.node == 0 && !here_.launcher_hosts_store ? 1 : 0);
    WaitLines lines(options_, [&] { return says_so ? cat(waits_, host_name(), ".", hint()) : std::string(); });
    try {
      own_address =
          wait_for_listener(here_.master_address, here_.master_port, deadline_, [&] { lines.write_if_due(); });
    } catch (const CommunicationError& error) {
      throw CommunicationError(cat(who_, "expected ", host_name(), " at ", place_, ", got after ", seconds(),
                                   " s: ", error.what(), ". Check MASTER_ADDR and MASTER_PORT, and that rank 0 runs."));
    }
    options.timeout = std::max(std::chrono::milliseconds(1000), time_left());
    return c10::make_intrusive<c10d::PrefixStore>(cat("d9d/", here_.attempt), connect(options, lines));
  }

  // Returns when all ranks have arrived and agree.
  void meet(c10d::Store& store) const {
    const std::string mine = cat("WORLD_SIZE ", here_.world_size, options_.job.empty() ? "" : ", ", options_.job);
    const std::string theirs = store.compareSet("job", "", mine);
    if (theirs != mine) {
      refuse(store, cat("came to ", place_, " with {", mine, "}, others with {", theirs,
                        "}. Start all ranks with the same configuration."));
    }
    if (store.add(cat("rank/", here_.rank), 1) != 1) {
      refuse(store,
             cat("came to ", place_, " twice. Give each process its own RANK, and each job its own MASTER_PORT."));
    }
    StoreBarrier arrivals(store, "joined", all_ranks(here_));
    arrivals.arrive(here_.rank);
    WaitLines lines(options_, [&] {
      const std::vector<std::int64_t> missing = arrivals.missing_ranks();
      const bool is_first_here = std::ranges::none_of(lower_ranks_of_machine(), [&](std::int64_t rank) {
        return std::ranges::find(missing, rank) == missing.end();
      });
      return is_first_here ? cat(waits_, "ranks: ", arrivals.missing(), ".", hint()) : std::string();
    });
    const bool is_complete = arrivals.wait_until(deadline_, [&] {
      lines.write_if_due();
      if (store.check({kRefused})) throw PeerFailedError(cat(who_, "was left: ", store.get_to_str(kRefused)));
    });
    D9D_CHECK(is_complete, CommunicationError, who_, "waited ", seconds(), " s at ", place_,
              " for ranks: ", arrivals.missing(), ", of which ", here_.variables,
              " of the environment say that there are. Look for their errors.", hint());
  }

  [[nodiscard]] bool is_host() const { return here_.rank == 0 && !here_.launcher_hosts_store; }
  [[nodiscard]] std::string lost(const c10::Error& error) const {
    const std::string text = error.what_without_backtrace();
    return cat(who_, "expected the store of the job at ", place_, ", got: ", text.substr(0, text.find('\n')),
               ". Does another program listen there?");
  }

 private:
  static constexpr const char* kRefused = "refused";

  [[nodiscard]] const char* host_name() const { return here_.launcher_hosts_store ? "the launcher" : "rank 0"; }
  [[nodiscard]] std::vector<std::int64_t> lower_ranks_of_machine() const {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(std::min(here_.local_rank, here_.rank)));
    std::iota(ranks.begin(), ranks.end(), here_.rank - std::ssize(ranks));
    return ranks;
  }
  [[nodiscard]] const char* hint() const {
    return here_.is_started ? " Start them, or unset the variables if no launcher has set them for this program."
                            : " No srun has started this process: start the program with srun.";
  }
  [[nodiscard]] std::chrono::milliseconds time_left() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
  }
  [[nodiscard]] double seconds() const { return static_cast<double>(options_.timeout.count()) / 1e3; }

  // The store waits without a limit for the first answer of the listening process. A thread that still waits at the
  // deadline is abandoned.
  [[nodiscard]] Store connect(const c10d::TCPStoreOptions& options, WaitLines& lines) const {
    std::packaged_task<Store()> task([address = here_.master_address, options]() -> Store {
      return c10::make_intrusive<c10d::TCPStore>(address, options);
    });
    std::future<Store> store = task.get_future();
    std::thread(std::move(task)).detach();
    while (store.wait_for(std::chrono::milliseconds(100)) != std::future_status::ready) {
      lines.write_if_due();
      D9D_CHECK(Clock::now() < deadline_, CommunicationError, who_, "expected the store of the job at ", place_,
                ", got no answer in ", seconds(), " s from what listens there. Does another program listen there? ",
                "Check MASTER_ADDR and MASTER_PORT.");
    }
    return store.get();
  }

  [[nodiscard]] std::unique_ptr<ListeningSocket> listen() const {
    try {
      return std::make_unique<ListeningSocket>(here_.master_port, ListeningSocket::Reach::kAllMachines);
    } catch (const IoError& error) {
      throw CommunicationError(
          cat(who_, "expected to listen at ", place_, ", got: ", error.what(), ". Set MASTER_PORT to a free port."));
    }
  }

  [[noreturn]] void refuse(c10d::Store& store, const std::string& reason) const {
    store.set(kRefused, cat("rank ", here_.rank, " ", reason));
    throw CommunicationError(cat(who_, reason));
  }

  const RankEnvironment& here_;
  const RendezvousOptions& options_;
  const Clock::time_point deadline_;
  const std::string place_;
  const std::string who_;
  const std::string waits_;
};

// The membership of a rank in the job. Its destructor, which runs last of all objects of the rank, records that the
// rank has left. On the rank that hosts the store, the destructor waits for the others and notifies those that have not
// left in time.
class Membership {
 public:
  Membership(Store store, const RankEnvironment& here, bool is_host)
      : store_(std::move(store)), here_(here), is_host_(is_host) {}
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  ~Membership() {
    try {
      leave();
    } catch (const std::exception&) {  // the store is gone already
    }
  }

 private:
  void leave() {
    StoreBarrier departures(*store_, "left", all_ranks(here_));
    departures.arrive(here_.rank);
    const auto patience = std::chrono::seconds(std::uncaught_exceptions() > 0 ? 2 : 10);
    if (is_host_ && !departures.wait_until(Clock::now() + patience)) {
      announce_end_of_store(*store_, here_.world_size);
      std::this_thread::sleep_for(std::chrono::seconds(1));  // the other ranks poll twice a second
    }
  }

  Store store_;
  RankEnvironment here_;
  bool is_host_;
};

}  // namespace

std::unique_ptr<CommunicatorBackend> connect_ranks(const RankEnvironment& here, const RendezvousOptions& options) {
  survive_closed_connections();
  const Rendezvous rendezvous(here, options);
  MakeProcessGroup make_group;
  // Before the store is opened, so that no other rank waits for this one yet if it throws.
  if (!options.device.is_cpu()) make_group = nccl_groups(options.device);
  try {
    std::string own_address;
    const Store store = rendezvous.open_store(own_address);
    const auto membership = std::make_shared<Membership>(store, here, rendezvous.is_host());
    rendezvous.meet(*store);
    if (!make_group) make_group = gloo_groups(own_address);
    return std::make_unique<ProcessGroupBackend>(ProcessGroupBackend::Options{.membership = membership,
                                                                              .store = store,
                                                                              .rank = here.rank,
                                                                              .world_size = here.world_size,
                                                                              .device = options.device,
                                                                              .make_group = make_group});
  } catch (const c10::Error& error) {
    throw CommunicationError(rendezvous.lost(error));
  }
}

}  // namespace d9d
