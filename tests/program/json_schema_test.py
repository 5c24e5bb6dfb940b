"""Checks the schemas that programs print with the validator of another package: they are valid schemas, the shipped job
files conform to them, and files that a program refuses do not."""

import copy
import json

import jsonschema
from program_job import REPOSITORY, ProgramTest, main

PROGRAMS = {"colocated_rl": "colocated_rl", "custom_decoder": "custom_decoder", "custom_model": "custom_model",
            "custom_optimizer": "custom_optimizer",
            "dpo": "dpo", "finetune": "finetune", "finetune_classification": "finetune_classification",
            "qwen3_dense/pretrain": "qwen3_dense_pretrain", "qwen3_moe/pretrain": "qwen3_moe_pretrain",
            "qwen3_dense/perplexity": "qwen3_dense_perplexity"}


class JsonSchema(ProgramTest):
    def shipped(self):
        """(path, job file, validator of its program) of every JSON file in examples/."""
        files = sorted((REPOSITORY / "examples").rglob("*.json"))
        self.assertGreaterEqual(len(files), 3)
        for path in files:
            example = path.parent.relative_to(REPOSITORY / "examples").as_posix()
            self.assertIn(example, PROGRAMS, f"which program reads {path}?")
            yield path, json.loads(path.read_text()), self.validator(PROGRAMS[example])

    def validator(self, program):
        job = self.job()
        job.program = job.program.with_name(program)
        schema = json.loads(job.run(command=[str(job.program), "--schema"]).stdout)
        self.assertEqual(schema["$schema"], jsonschema.Draft202012Validator.META_SCHEMA["$id"])
        jsonschema.Draft202012Validator.check_schema(schema)
        return jsonschema.Draft202012Validator(schema)

    def section(self, config):
        """The record with the parameters of the run: a program trains or infers."""
        return config["trainer" if "trainer" in config else "inference"]

    def errors(self, validator, config):
        return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(config)]

    def test_every_shipped_job_file_fits_the_schema_of_its_program(self):
        for path, config, validator in self.shipped():
            with self.subTest(path):
                self.assertEqual(self.errors(validator, config), [])

    def test_what_a_program_refuses_does_not_fit(self):
        def without_seed(config):
            del self.section(config)["determinism"]["base_seed"]

        def unknown_key(config):
            self.section(config)["gc"]["period"] = 5

        def unknown_record(config):
            config["trainer"]["logging"]["tracker"]["provider"] = "jsonx"

        def out_of_range(config):
            self.section(config)["timeout"] = {"step_timeout": 0}

        def null(config):
            config["trainer"]["run"]["name"] = None

        def wrong_type(config):
            config["trainer"]["gradient_clipping"]["max_norm"] = [1]

        of_every_run = [without_seed, unknown_key, out_of_range]
        of_training = [unknown_record, null, wrong_type]
        for path, config, validator in self.shipped():
            for spoil in of_every_run + (of_training if "trainer" in config else []):
                with self.subTest(path=path, spoil=spoil.__name__):
                    spoilt = copy.deepcopy(config)
                    spoil(spoilt)
                    self.assertNotEqual(self.errors(validator, spoilt), [])

    def test_periods_are_numbers_of_steps_or_one_of_two_words(self):
        for _, config, validator in self.shipped():
            for period, fits in ((1, True), ("last_step", True), ("disable", True), (0, False), ("never", False)):
                with self.subTest(period):
                    self.section(config)["gc"]["period_steps"] = period
                    self.assertEqual(self.errors(validator, config) == [], fits)


if __name__ == "__main__":
    main()
