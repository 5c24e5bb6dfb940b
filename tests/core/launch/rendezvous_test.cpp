#include "d9d/core/launch/rendezvous.h"

#include <signal.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"
#include "d9d/base/environment.h"
#include "d9d/base/log.h"
#include "d9d/core/launch/child_processes.h"
#include "d9d/core/launch/tcp.h"

#include "tests/core/launch/exit_code.h"
#include "tests/support/free_port.h"
#include "tests/support/program.h"
#include "tests/support/ranks.h"

namespace d9d::test::rendezvous_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Program::Variables rank_variables(int rank, int world_size, const std::string& port) {
  const std::string size = std::to_string(world_size);
  return {{"RANK", std::to_string(rank)},
          {"LOCAL_RANK", std::to_string(rank)},
          {"WORLD_SIZE", size},
          {"LOCAL_WORLD_SIZE", size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"TORCHELASTIC_USE_AGENT_STORE", ""},
          {"D9D_TEST_JOB", "mesh a"}};
}

Program::Variables with(Program::Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

// Meets the other ranks, and communicates until rank 0 has followed D9D_TEST_PLAN.
const TestProgram kRank("rank", [] {
  return exit_code_of([] {
    const RankEnvironment here = rank_environment().value();
    const auto seconds = environment_variable("D9D_TEST_SECONDS");
    const auto silence = environment_variable("D9D_TEST_SILENCE_MS");
    World world(connect_ranks(here, {.job = environment_variable("D9D_TEST_JOB").value_or(""),
                                     .timeout = std::chrono::seconds(seconds ? std::stol(*seconds) : 30),
                                     .silence = std::chrono::milliseconds(silence ? std::stol(*silence) : 5000)}));
    world.set_timeout(std::chrono::seconds(50));
    const auto all = world.communicator(group_of(world, "all"));
    all->barrier();
    if (environment_variable("D9D_TEST_PLAN") != "hang") return 0;
    write_line_to_stderr("waiting");
    try {
      while (true) all->barrier();
    } catch (const std::exception& error) {
      write_line_to_stderr(cat("told: ", error.what()));
      throw;
    }
  });
});

TEST(Rendezvous, Processes_meet_at_rank_0_and_part) {
  const std::string port = std::to_string(free_port());
  Program one("rank", rank_variables(1, 2, port));
  Program zero("rank", rank_variables(0, 2, port));
  for (Program* const program : {&one, &zero}) {
    const Result result = program->wait();
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.errors, "");
  }
}

TEST(Rendezvous, Names_a_port_that_is_in_use) {
  const ListeningSocket taken(0, ListeningSocket::Reach::kAllMachines);
  const std::string port = std::to_string(taken.port());
  const Result result = Program("rank", rank_variables(0, 2, port)).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.errors, cat("error: [core::rendezvous] rank 0 of 2 expected to listen at 127.0.0.1:", port,
                               ", got: Address already in use. Set MASTER_PORT to a free port.\n"));
}

TEST(Rendezvous, Names_a_master_that_is_out_of_reach) {
  const std::string port = std::to_string(free_port());
  const Result result = Program("rank", with(rank_variables(1, 2, port), "D9D_TEST_SECONDS", "1")).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.errors,
            cat("error: [core::rendezvous] rank 1 of 2 expected rank 0 at 127.0.0.1:", port,
                ", got after 1 s: Connection refused. Check MASTER_ADDR and MASTER_PORT, and that rank 0 "
                "runs.\n"));
  EXPECT_LT(result.seconds, 20);
}

TEST(Rendezvous, Names_a_master_that_has_no_address) {
  auto variables = with(rank_variables(1, 2, "29500"), "D9D_TEST_SECONDS", "1");
  variables["MASTER_ADDR"] = "no-such-host.invalid";
  const Result result = Program("rank", variables).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, HasSubstr("expected rank 0 at no-such-host.invalid:29500, got after 1 s: "));
}

TEST(Rendezvous, Does_not_wait_longer_for_what_listens_and_says_nothing) {
  const ListeningSocket silent(0, ListeningSocket::Reach::kThisMachine);
  const auto variables = rank_variables(1, 2, std::to_string(silent.port()));
  const Result result = Program("rank", with(variables, "D9D_TEST_SECONDS", "1")).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.errors, AllOf(HasSubstr("rank 1 of 2 expected the store of the job at 127.0.0.1:"),
                                   HasSubstr("got no answer in 1 s from what listens there")));
  EXPECT_LT(result.seconds, 20);
}

TEST(Rendezvous, Names_ranks_that_do_not_come) {
  const std::string port = std::to_string(free_port());
  const Result result = Program("rank", with(rank_variables(0, 3, port), "D9D_TEST_SECONDS", "1")).wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.errors, cat("error: [core::rendezvous] rank 0 of 3 waited 1 s at 127.0.0.1:", port,
                               " for ranks: 1, 2, of which RANK and WORLD_SIZE of the environment say that there are. "
                               "Look for their errors. Start them, or unset the variables if no launcher has set them "
                               "for this program.\n"));
  EXPECT_LT(result.seconds, 20);
}

TEST(Rendezvous, Says_soon_for_whom_it_waits_and_why) {
  const std::string port = std::to_string(free_port());
  const auto variables = [&](int rank) { return with(rank_variables(rank, 3, port), "D9D_TEST_SILENCE_MS", "100"); };
  Program one("rank", variables(1));
  ASSERT_TRUE(one.has_written("for this program"));  // waits for rank 0
  Program zero("rank", variables(0));
  ASSERT_TRUE(zero.has_written("for this program"));
  Program two("rank", variables(2));
  EXPECT_EQ(two.wait().exit_code, 0);
  EXPECT_THAT(one.wait().errors,
              HasSubstr(cat("rank 1 of 3 (so say RANK and WORLD_SIZE of the environment) waits at 127.0.0.1:", port,
                            " for rank 0. Start them, or unset the variables")));
  EXPECT_THAT(zero.wait().errors,
              HasSubstr(cat("rank 0 of 3 (so say RANK and WORLD_SIZE of the environment) waits at 127.0.0.1:", port,
                            " for ranks: ")));
}

TEST(Rendezvous, Refuses_ranks_with_another_world_size_or_job_and_frees_the_others) {
  for (const auto& [name, value] : {std::pair{"WORLD_SIZE", "3"}, std::pair{"D9D_TEST_JOB", "mesh b"}}) {
    const std::string port = std::to_string(free_port());
    Program zero("rank", rank_variables(0, 2, port));
    Program one("rank", with(rank_variables(1, 2, port), name, value));
    const Result of_zero = zero.wait();
    const Result of_one = one.wait();
    // The rank that arrives second detects the difference and reports it; the other rank is told of it.
    EXPECT_THAT((std::vector{of_zero.exit_code, of_one.exit_code}),
                ::testing::UnorderedElementsAre(1, kPeerFailedExitCode));
    EXPECT_THAT(of_zero.errors + of_one.errors,
                AllOf(HasSubstr(cat("came to 127.0.0.1:", port, " with {WORLD_SIZE")), HasSubstr(value),
                      HasSubstr("Start all ranks with the same configuration.\n")));
    EXPECT_LT(of_zero.seconds, 20);
    EXPECT_LT(of_one.seconds, 20);
  }
}

TEST(Rendezvous, Refuses_a_rank_that_comes_twice) {
  const std::string port = std::to_string(free_port());
  Program zero("rank", with(rank_variables(0, 3, port), "D9D_TEST_SECONDS", "20"));
  Program one("rank", rank_variables(1, 3, port));
  Program again("rank", rank_variables(1, 3, port));
  const std::string errors = one.wait().errors + again.wait().errors;
  EXPECT_THAT(errors, HasSubstr("came to 127.0.0.1:" + port + " twice."));
  EXPECT_EQ(zero.wait().exit_code, kPeerFailedExitCode);
}

TEST(Rendezvous, Of_a_process_that_is_killed_all_others_hear_soon_and_by_name) {
  for (const std::size_t victim : {0, 2}) {
    const std::string port = std::to_string(free_port());
    std::vector<std::unique_ptr<Program>> programs;
    for (int rank = 0; rank < 4; ++rank) {
      programs.push_back(
          std::make_unique<Program>("rank", with(rank_variables(rank, 4, port), "D9D_TEST_PLAN", "hang")));
    }
    for (const auto& program : programs) ASSERT_TRUE(program->has_written("waiting"));
    programs[victim]->kill(SIGKILL);
    for (std::size_t rank = 0; rank < programs.size(); ++rank) {
      if (rank == victim) continue;
      const Result result = programs[rank]->wait();
      EXPECT_NE(result.exit_code, 0);
      EXPECT_LT(result.seconds, 40);  // the timeout of an operation is 50 s
      // Rank 0 hosts the store, without which the other ranks cannot be asked.
      const std::string told = victim == 0 ? "group 'all' failed: " : "no answer from .*rank 2";
      EXPECT_THAT(result.errors, AllOf(HasSubstr("'all'"), ::testing::ContainsRegex(told)))
          << "exit code " << result.exit_code;
    }
  }
}

}  // namespace
}  // namespace d9d::test::rendezvous_test
