// Tests whole job files: they parse, survive a round trip and fit their schema, and broken ones do not crash the
// parser.
#include "tests/loop/config/job_config.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "d9d/base/config/record_json.h"
#include "d9d/loop/config/aliases.h"
#include "d9d/lr_scheduler/schedule_phases.h"

namespace d9d::job_config_test {
namespace {

TEST(JobConfig, Parses_a_file_of_d9d_0_24) {
  const auto job = parse_job(job_0_24());
  EXPECT_EQ(job.mesh.world_size(), 8);
  EXPECT_EQ(loader_config(job.data).microbatch_size, 8);
  EXPECT_EQ(job.model_provider.model.rope_base, 1000000);
  EXPECT_EQ(std::get<LoopedBfsScheduleConfig>(job.trainer.pipelining.schedule).num_stages_per_rank, 2);
  EXPECT_EQ(std::get<StochasticAdamWConfig>(job.optimizer).state_dtype, Dtype::kBFloat16);
  EXPECT_EQ(schedule_phases(job.lr_scheduler, 10).piecewise.phases.size(), 2U);
}

TEST(JobConfig, Writes_a_record_that_reads_back_equal) {
  const Json resolved = write_record(parse_job(job_0_24()));
  EXPECT_EQ(write_record(parse_job(resolved)), resolved);
  EXPECT_EQ(resolved["trainer"]["gradient_manager"]["bucket_size_mb"], 32);
}

TEST(JobConfig, Accepts_a_learning_rate_schedule_without_a_name) {
  Json job = job_0_24();
  job["lr_scheduler"] = Json(job["lr_scheduler"]["scheduler"]);
  EXPECT_EQ(schedule_phases(parse_job(job).lr_scheduler, 10).piecewise.phases.size(), 2U);
}

// A validator for the keywords of JSON schema that json_schema emits.
bool fits(const Json& value, const Json& schema) {
  const auto fits_value = [&](const Json& alternative) { return fits(value, alternative); };
  if (schema.contains("anyOf")) return std::any_of(schema["anyOf"].begin(), schema["anyOf"].end(), fits_value);
  if (schema.contains("oneOf")) return std::count_if(schema["oneOf"].begin(), schema["oneOf"].end(), fits_value) == 1;
  if (schema.contains("const")) return value == schema["const"];
  if (schema.contains("enum")) return std::count(schema["enum"].begin(), schema["enum"].end(), value) == 1;
  const std::string type = schema.value("type", "any");
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer" || type == "number") {
    if (type == "integer" ? !value.is_number_integer() : !value.is_number()) return false;
    const auto number = value.get<double>();
    return number >= schema.value("minimum", number) && number <= schema.value("maximum", number) &&
           (!schema.contains("exclusiveMinimum") || number > schema["exclusiveMinimum"]) &&
           (!schema.contains("exclusiveMaximum") || number < schema["exclusiveMaximum"]);
  }
  if (type == "array") {
    if (!value.is_array()) return false;
    for (std::size_t i = 0; i < value.size(); ++i) {
      if (!fits(value[i], schema.contains("items") ? schema["items"] : schema["prefixItems"].at(i))) return false;
    }
    return true;
  }
  if (type != "object") return true;
  if (!value.is_object()) return false;
  for (const auto& key : schema.value("required", Json::array())) {
    if (!value.contains(key.get<std::string>())) return false;
  }
  for (const auto& [key, member] : value.items()) {
    const bool is_listed = schema.contains("properties") && schema["properties"].contains(key);
    const Json& inner = is_listed ? schema["properties"][key] : schema["additionalProperties"];
    if (inner == false || !fits(member, inner)) return false;
  }
  return true;
}

TEST(JobConfig, Schema_admits_a_resolved_file_and_no_unknown_key) {
  const Json schema = json_schema<JobConfig>();
  Json resolved = write_record(parse_job(job_0_24()));
  EXPECT_TRUE(fits(resolved, schema));
  resolved["trainer"]["logging"]["tracker"]["repo"] = "a";
  EXPECT_FALSE(fits(resolved, schema));
}

TEST(JobConfig, Schema_admits_each_default_that_it_names) {
  const std::function<void(const Json&)> check_defaults = [&](const Json& schema) {
    if (schema.is_object() && schema.contains("default")) {
      EXPECT_TRUE(fits(schema["default"], schema)) << schema;
    }
    for (const auto& inner : schema) {
      if (inner.is_structured()) check_defaults(inner);
    }
  };
  check_defaults(json_schema<DataPrefetchConfig>());
  check_defaults(json_schema<TrackerConfig>());
  check_defaults(json_schema<OptimizerConfig>());
  check_defaults(json_schema<Qwen3MoELayerParameters>());
}

// Collects every object, list and value of a document.
void collect(Json& json, std::vector<Json*>& nodes) {
  nodes.push_back(&json);
  for (auto& inner : json) {
    if (inner.is_structured()) collect(inner, nodes);
    if (!inner.is_structured()) nodes.push_back(&inner);
  }
}

// Replaces, removes, adds or renames one node.
void mutate(Json& job, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  static const std::vector<Json> kValues = {nullptr,
                                            true,
                                            0,
                                            -1,
                                            1.5,
                                            1e30,
                                            7.0,
                                            "7",
                                            "",
                                            "null",
                                            "gpipe",
                                            Json::array(),
                                            Json::object(),
                                            Json::array({1, 2}),
                                            Json{{"kind", "text"}},
                                            std::uint64_t{18446744073709551615U},
                                            "\u00e9\x01",
                                            std::string(500, 'x')};
  std::vector<Json*> nodes;
  collect(job, nodes);
  Json& node = *nodes[below(nodes.size())];
  const Json value = below(4) == 0 ? Json(*nodes[below(nodes.size())]) : kValues[below(kValues.size())];
  if (node.is_object() && !node.empty() && below(3) != 0) {
    const std::string key = std::next(node.begin(), static_cast<std::ptrdiff_t>(below(node.size()))).key();
    const Json moved = node[key];
    if (below(2) == 0) node.erase(key);
    if (below(2) == 0) node[key.substr(0, below(key.size() + 1)) + "e"] = moved;
  } else {
    node = value;
  }
}

TEST(JobConfig, Parses_or_refuses_every_mutation_with_one_line) {
  std::mt19937 random(20240607);
  int accepted = 0;
  constexpr int kRounds = 3000;
  for (int round = 0; round < kRounds; ++round) {
    Json job = round % 2 == 0 ? job_0_24() : job_0_16();
    for (auto count = random() % 4; count != 0; --count) mutate(job, random);
    const auto error = config_error_of([&] {
      std::ignore = apply_0_16_aliases(job, {});
      const auto parsed = parse_job(job);
      EXPECT_EQ(write_record(parse_job(write_record(parsed))), write_record(parsed));
    });
    EXPECT_EQ(error.find('\n'), std::string::npos);
    if (error == "accepted") {
      ++accepted;
    } else {
      EXPECT_THAT(error, ::testing::StartsWith("[config] "));
    }
  }
  EXPECT_GT(accepted, kRounds / 20);
  EXPECT_LT(accepted, kRounds * 3 / 4);
}

TEST(JobConfig, Parses_or_refuses_every_truncation_and_changed_byte) {
  const std::string text = job_0_24().dump(1);
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string broken = text;
    if (round % 2 == 0) broken.resize(random() % text.size());
    if (!broken.empty()) broken[random() % broken.size()] = static_cast<char>(random() % 256);
    const auto error = config_error_of([&] { std::ignore = parse_job(parse_json_text(broken, "job.json")); });
    EXPECT_EQ(error.find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace d9d::job_config_test
