"""Every key of a job file must have an effect: keys_table.py has a row for each, with a value that differs from the
default and the effect to expect. A key without a row fails, and so does a row without a key."""

import concurrent.futures
import copy
import functools
import json
import os
import re
import threading

import schema
from keys_table import CURVE, numbers, rows
from program_job import MEASURED, REPOSITORY, ProgramTest, main


def change(config, path, value):
    """Sets the value at a dotted path; a number is an index of a list. `...` removes a key."""
    *parents, last = path.split(".")
    for name in parents:
        config = config[int(name)] if isinstance(config, list) else config.setdefault(name, {})
    if value is ...:
        config.pop(last, None)
    elif isinstance(config, list):
        config[int(last)] = value
    else:
        config[last] = value


class Result:
    """The results of one run."""

    def __init__(self, job, process):
        self.error = process.stderr.splitlines()[-1] if process.returncode else ""
        self.log = re.sub(r"\d\d:\d\d:\d\d", "", process.stderr)
        self.steps = job.steps() if job.metrics.exists() else []
        for step in self.steps:
            for name in MEASURED:
                step.pop(name, None)
        self.weights = (job.export / "model.safetensors").read_bytes() if job.export.exists() else b""
        self.events = b"".join(path.read_bytes() for path in sorted(job.folder.rglob("events.*")))
        self.files = {str(path.relative_to(job.folder)) for path in job.folder.rglob("*") if path.is_file()}


def is_section(value, key, table):
    """A record, or one of several, whose keys have the rows."""
    is_record = "properties" in value or all("properties" in each for each in value.get("oneOf", [{}]))
    return is_record and any(other.startswith((key + ".", key + "[")) for other in table)


def is_inner(key, table):
    """Whether the key belongs to a record that is refused or renamed as a whole, or that is tested in another place."""
    if any(each.endswith("]") and key.startswith(each) for each in table):
        return True
    if key.startswith("evaluation_data{}"):
        return is_inner(key.replace("evaluation_data{}", "data", 1), table) or "data" + key[len("evaluation_data{}"):] in table
    if key.startswith("data["):  # kinds of data share keys, and so do the sources of a mixture
        rest = re.sub(r"^data\[\w+\]\.(sources\[\]\.source\[\w+\]\.)?", "", key)
        return any(f"data[{kind}].{rest}" in table for kind in ("text", "jsonl", "arrow", "tokens"))
    return key.startswith("trainer.logging.tracker[multi].trackers[]")


def path_of(key):
    return re.sub(r"\[[^]]*\]|{}", "", key)


class Keys(ProgramTest):
    def setUp(self):
        self.lock = threading.Lock()
        self.results = {}

    @functools.cached_property
    def schemas(self):
        printed = {}
        for model in ("dense", "moe"):
            job = self.job(model)
            printed |= schema.keys(json.loads(job.run(command=[str(job.program), "--schema"]).stdout))
        return printed

    def run_job(self, model, changes, watch=None):
        """The result of the tiny job with `changes`; equal changes share one run."""
        name = json.dumps([model, changes], sort_keys=True, default=str)
        with self.lock:
            if name in self.results and watch is None:
                return self.results[name]
        with self.lock:
            job = self.job(model)
        job.config["trainer"]["schedule"]["total_steps"] = 4
        job.config["data"]["num_workers"] = 0
        other = "".join(f"{i} sheep\n" for i in range(600))
        (job.folder / "other.txt").write_text(other)
        (job.folder / "tokens.bin").write_bytes((job.folder / "text.txt").read_bytes())
        for path, value in changes.items():
            change(job.config, path, copy.deepcopy(value))
        result = watch(job) if watch else Result(job, job.run())
        with self.lock:
            self.results[name] = result
        return result

    def problem_of(self, key, row):
        """A description of the fault of a row; None if its value has the expected effect."""
        if isinstance(row.look, tuple) and row.look[0] == "test":
            _, path, test = row.look
            is_there = re.search(rf"(^TEST\w*\(\w+, |def ){test}\(?", (REPOSITORY / path).read_text(), re.MULTILINE)
            return None if is_there else f"{path} has no {test}"
        if isinstance(row.look, tuple) and row.look[0] == "required with":
            _, default, is_required = self.schemas[key]
            return None if is_required and row.look[1] in rows() else "it is not required"
        if isinstance(row.look, tuple):
            return self.other_spelling(*row.look[1:])
        if row.look == "threads":
            return self.threads()
        path = row.at or path_of(key)
        without = self.run_job(row.model, row.given)
        if without.error:
            return f"without it the job fails: {without.error}"
        value = self.schemas.get(key)
        if value and not value[2] and value[1] == row.value:
            return f"{row.value} is the default"
        with_it = self.run_job(row.model, row.given | {path: row.value})
        return None if row.look(without, with_it) else f"{path} = {row.value} is not seen. {with_it.error}"

    def other_spelling(self, path, inner):
        without = self.run_job("moe", {f"{path}.{inner}": CURVE})
        with_it = self.run_job("moe", {path: CURVE})
        return "the job is another" if numbers(without, with_it) or with_it.error else None

    def threads(self):
        """The number of threads of LibTorch's operators, counted while a job with long rows runs."""
        def most_threads(job):
            job.config["data"].update(sequence_length=512)
            job.config["model_provider"]["model"]["layer"].update(hidden_size=256)
            process = job.start(stdout=-3, stderr=-3)
            most = 0
            while process.poll() is None:
                try:
                    most = max(most, len(os.listdir(f"/proc/{process.pid}/task")))
                except OSError:
                    break
            process.wait()
            return most

        one, three = (self.run_job("dense", {"launch.num_threads": n}, watch=most_threads) for n in (1, 3))
        return None if three > one else f"{one} threads of one, {three} of three"

    def test_every_key_has_a_row_and_every_row_a_key(self):
        table = rows()
        for key, (value, _, _) in self.schemas.items():
            self.assertTrue(key in table or is_inner(key, table) or is_section(value, key, table),
                            f"{key} has no row in keys_table.py: what does a value that is not the default change?")
        for key in table:
            self.assertTrue(key in self.schemas or any(each.startswith(key) for each in self.schemas), f"no key {key}")

    def test_every_value_that_is_not_the_default_is_seen(self):
        _ = self.schemas
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            problems = dict(zip(rows(), pool.map(lambda item: self.problem_of(*item), rows().items())))
        for key, problem in problems.items():
            with self.subTest(key):
                self.assertIsNone(problem, key)


if __name__ == "__main__":
    main()
