#include "d9d/core/launch/rank_environment.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/check.h"

namespace d9d::rank_environment_test {
namespace {

using ::testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

std::optional<RankEnvironment> read(const Variables& variables) {
  return rank_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string error_of(const Variables& variables) {
  try {
    (void)read(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

Variables with(Variables variables, const Variables& others) {
  for (const auto& [name, value] : others) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun = {
    {"RANK", "5"},       {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "1"}, {"MASTER_ADDR", "host0"}, {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},     {"SLURM_NTASKS", "7"},
                          {"SLURM_LOCALID", "1"},    {"SLURM_NODEID", "1"},
                          {"SLURM_NNODES", "2"},     {"SLURM_TASKS_PER_NODE", "4,3"},
                          {"SLURM_JOB_ID", "70123"}, {"SLURM_JOB_NODELIST", "gpu[012-013],login"}};

TEST(RankEnvironment, Is_nothing_without_variables) {
  EXPECT_FALSE(read({}));
  EXPECT_FALSE(read({{"MASTER_ADDR", "host0"}, {"SLURM_JOB_ID", "3"}}));
  EXPECT_FALSE(read({{"RANK", ""}, {"WORLD_SIZE", ""}}));
}

TEST(RankEnvironment, Reads_torchruns_variables) {
  const RankEnvironment here = read(kTorchrun).value();
  EXPECT_EQ(here.rank, 5);
  EXPECT_EQ(here.world_size, 8);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_EQ(here.local_world_size, 4);
  EXPECT_EQ(here.node, 1);
  EXPECT_EQ(here.num_nodes, 2);
  EXPECT_EQ(here.master_address, "host0");
  EXPECT_EQ(here.master_port, 29500);
  EXPECT_FALSE(here.launcher_hosts_store);
  EXPECT_TRUE(read(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}))->launcher_hosts_store);
  EXPECT_EQ(read(with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "2"}}))->attempt, 2);
  EXPECT_EQ(here.variables, "RANK and WORLD_SIZE");
  EXPECT_TRUE(here.is_started);
}

TEST(RankEnvironment, Reads_sruns_variables) {
  const RankEnvironment here = read(kSlurm).value();
  EXPECT_EQ(here.rank, 5);
  EXPECT_EQ(here.world_size, 7);
  EXPECT_EQ(here.local_rank, 1);
  EXPECT_EQ(here.local_world_size, 3);
  EXPECT_EQ(here.node, 1);
  EXPECT_EQ(here.num_nodes, 2);
  EXPECT_EQ(here.master_address, "gpu012");
  EXPECT_EQ(here.master_port, 10000 + 70123 % 20000);
  EXPECT_EQ(here.variables, "SLURM_PROCID and SLURM_NTASKS");
  EXPECT_FALSE(here.is_started);  // as in a batch script
  EXPECT_TRUE(read(with(kSlurm, {{"SLURM_STEP_ID", "0"}}))->is_started);
}

TEST(RankEnvironment, Steps_of_a_SLURM_job_have_their_own_tasks_hosts_and_port) {
  const RankEnvironment here = read(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "6"},
                                                  {"SLURM_STEP_NUM_NODES", "2"},
                                                  {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                                                  {"SLURM_STEP_NODELIST", "gpu[013-014]"},
                                                  {"SLURM_STEP_ID", "1"}}))
                                   .value();
  EXPECT_EQ(here.world_size, 6);
  EXPECT_EQ(here.local_world_size, 3);
  EXPECT_EQ(here.master_address, "gpu013");
  EXPECT_NE(here.master_port, read(kSlurm)->master_port);
}

TEST(RankEnvironment, Master_variables_override_SLURMs_and_torchrun_under_srun_counts) {
  const RankEnvironment here = read(with(kSlurm, {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "4242"}})).value();
  EXPECT_EQ(here.master_address, "10.0.0.7");
  EXPECT_EQ(here.master_port, 4242);
  EXPECT_EQ(read(with(kSlurm, kTorchrun))->world_size, 8);
}

TEST(RankEnvironment, One_SLURM_task_launches_nothing) {
  EXPECT_FALSE(read(with(kSlurm, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})));
}

TEST(RankEnvironment, Names_each_variable_that_is_missing) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(error_of(without(kTorchrun, name)), HasSubstr(std::string("expected ") + name + " with")) << name;
  }
  for (const char* name : {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_NNODES", "SLURM_TASKS_PER_NODE", "SLURM_JOB_ID",
                           "SLURM_JOB_NODELIST"}) {
    EXPECT_THAT(error_of(without(kSlurm, name)), HasSubstr(std::string("expected ") + name + " with")) << name;
  }
}

TEST(RankEnvironment, Refuses_what_contradicts_itself) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "8"}})), HasSubstr("expected RANK below WORLD_SIZE = 8, got 8"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_RANK", "4"}})), HasSubstr("expected LOCAL_RANK below"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})), HasSubstr("LOCAL_WORLD_SIZE"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_PROCID", "7"}})), HasSubstr("expected SLURM_PROCID below"));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_NODEID", "2"}})), HasSubstr("node 2"));
}

TEST(RankEnvironment, Refuses_what_is_no_number_or_no_port) {
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "-1"}})),
              HasSubstr("expected RANK to be a number from 0 on, got '-1'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"WORLD_SIZE", "8x"}})), HasSubstr("got '8x'"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", "70000"}})), HasSubstr("MASTER_PORT in [1, 65535]"));
}

TEST(SlurmLists, Have_a_first_host_and_tasks_of_each_node) {
  EXPECT_EQ(first_slurm_host("one"), "one");
  EXPECT_EQ(first_slurm_host("one,two"), "one");
  EXPECT_EQ(first_slurm_host("n[3,5-7],m1"), "n3");
  EXPECT_EQ(first_slurm_host("rack[2-3]-n[07,09-12],login"), "rack2-n07");
  EXPECT_THROW((void)first_slurm_host("n[3"), ConfigError);
  EXPECT_EQ(slurm_tasks_of_node("4", 0), 4);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3", 1), 4);
  EXPECT_EQ(slurm_tasks_of_node("4(x2),3", 2), 3);
  EXPECT_THROW((void)slurm_tasks_of_node("4(x2),3", 3), ConfigError);
  EXPECT_THROW((void)slurm_tasks_of_node("4(x", 0), ConfigError);
}

}  // namespace
}  // namespace d9d::rank_environment_test
