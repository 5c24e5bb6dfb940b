"""Hands the values of a run to the SDK of Aim, W&B or MLflow.

It reads JSON lines from standard input and answers on standard output:

    {"start": {"provider": "aim", "config": {..}}}        {"ready": "3.29.1"}, or {"error": ".."} without the SDK
    {"open": {"name": .., "resume_state": .., ..}}        {"opened": {"state": {..}, "spool": PATH, "warning": ..}}, or {"error": ".."}
    [step, name, context, value]                          {"done": n} now and then: the first n lines of values are safe
    {"replay": PATH}                                      the values of the spool are added to the run
    {"close": "completed"}, "stopped" or "failed"         {"closed": true}

A value is a number ("NaN", "Infinity" and "-Infinity" as strings), a list of counts, {"text": ".."} or a picture {"svg": ".."}. The
end of the input without "close", or of the training process, ends the run as failed. {"failed": ".."} is the last answer of an SDK
that takes no more; {"refused": ".."} that a value is left out.
"""

import fcntl
import importlib
import importlib.metadata
import importlib.util
import json
import math
import os
import posixpath
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

MOST_BINS = 512  # of wandb.Histogram
MOST_METRICS = 1000  # of a batch of MLflow
MOST_PARAMETERS = 100
MOST_BYTES = 255  # of the name of a file
MOST_CHARACTERS = 250  # of the name of a parameter of MLflow
MOST_SECONDS = 1  # between answers, while there are values


def flat(values, path=""):
    """{"a": {"b": 1}} as {"a/b": 1}."""
    if not isinstance(values, dict) or not values:
        return {path: values} if path else {}
    return {name: value for key, child in values.items() for name, value in flat(child, f"{path}/{key}" if path else key).items()}


def series(name, context):
    return "/".join([*context.values(), name])


class Aim:
    def __init__(self, config):
        self.config = config
        self.aim = importlib.import_module("aim")

    def open(self, request):
        state = request["resume_state"] or {}
        self.run = self.aim.Run(
            run_hash=state.get("restart_hash"), repo=self.config["repo"], log_system_params=self.config["log_system_params"],
            capture_terminal_logs=self.config["capture_terminal_logs"],
            system_tracking_interval=self.config["system_tracking_interval"])
        self.run.name, self.run.description = request["name"], request["description"]
        self.run["hparams"], self.run["status"] = request["hparams"], "running"
        return {"restart_hash": self.run.hash}

    def write(self, step, name, context, value):
        if isinstance(value, list):
            value = self.aim.Distribution(hist=value, bin_range=(0, len(value)))
        elif isinstance(value, dict):
            if "svg" in value:
                return  # Aim has pictures of pixels only
            value = self.aim.Text(value["text"])
        self.run.track(value, name=name, step=step, context=context)

    def flush(self):
        pass

    def close(self, outcome):
        self.run["status"] = outcome
        if outcome == "completed":
            self.run.report_successful_finish(block=False)
        self.run.close()


class Wandb:
    def __init__(self, config):
        self.config = config
        self.wandb = importlib.import_module("wandb")

    def open(self, request):
        state = request["resume_state"] or {}
        config = self.config
        if config["dir"] is not None:  # W&B itself would take another folder
            os.makedirs(config["dir"], exist_ok=True)
            tempfile.TemporaryFile(dir=config["dir"]).close()
        self.run = self.wandb.init(
            project=config["project"], entity=config["entity"], group=config["group"], tags=config["tags"], mode=config["mode"],
            dir=config["dir"], name=request["name"], notes=request["description"] or None, config=flat(request["hparams"]),
            id=state.get("run_id"), resume="must" if "run_id" in state else None,
            settings=self.wandb.Settings(console="wrap" if config["capture_terminal_logs"] else "off", **self.beside()))
        self.first = self.step = self.run.step  # a run on a server has the steps before this one
        self.row = {}
        return {"run_id": self.run.id}

    def beside(self):
        """What lets a run whose spool is replayed be open beside that of the job."""
        return {} if self.wandb.run is None else {"reinit": "create_new"}

    def write(self, step, name, context, value):
        step = max(step, 0)  # values before the first step have step -1
        if step < self.first:
            return  # W&B takes no value of a step that the run has
        if step > self.step:
            self.flush()
        self.step = max(step, self.step)
        if isinstance(value, list):
            width = math.ceil(len(value) / MOST_BINS)
            counts = [sum(value[i:i + width]) for i in range(0, len(value), width)]
            value = self.wandb.Histogram(np_histogram=(counts, [i * width for i in range(len(counts) + 1)]))
        elif isinstance(value, dict):
            value = self.wandb.Html(value["svg"], inject=False) if "svg" in value else value["text"]
        self.row[series(name, context)] = value

    def flush(self):
        if self.row:
            self.run.log(self.row, step=self.step)
            self.row = {}

    def close(self, outcome):
        self.flush()
        if outcome == "stopped":
            self.run.mark_preempting()  # with an exit code other than 0 the run is "preempted"
        self.run.finish(exit_code=0 if outcome == "completed" else 1)


def mlflow_names(names):
    """Each name as one that MLflow takes for a parameter, and no two the same."""
    taken = {}
    for name in names:
        plain = posixpath.normpath(re.sub(r"[^\w.\- :/]", "_", name)[:MOST_CHARACTERS]).lstrip("./") or "_"
        number, free = 1, plain
        while free in taken.values():
            number += 1
            free = f"{plain[:MOST_CHARACTERS - 8]}_{number}"
        taken[name] = free
    return taken


class Mlflow:
    warning = None  # about the run that was opened

    def __init__(self, config):
        self.config = config
        self.mlflow = importlib.import_module("mlflow")
        self.entities = importlib.import_module("mlflow.entities")

    def open(self, request):
        self.client = self.mlflow.MlflowClient(tracking_uri=self.config["tracking_uri"])
        state = request["resume_state"] or {}
        self.metrics = []
        if "run_id" in state:
            self.id = state["run_id"]
            self.client.update_run(self.id, status="RUNNING")
            return {"run_id": self.id}
        experiment = self.client.get_experiment_by_name(self.config["experiment"])
        experiment_id = experiment.experiment_id if experiment else self.client.create_experiment(self.config["experiment"])
        tags = {"mlflow.note.content": request["description"]} if request["description"] else {}
        self.id = self.client.create_run(experiment_id, run_name=request["name"], tags=tags).info.run_id
        hparams = flat(request["hparams"])
        names = mlflow_names(hparams)
        if changed := [name for name in names if name != names[name]]:
            self.warning = (f"takes other names of {len(changed)} hyper-parameters than the job has: "
                            f"'{names[changed[0]]}' is '{changed[0]}'")
        params = [self.entities.Param(names[name], json.dumps(value) if not isinstance(value, str) else value)
                  for name, value in hparams.items()]
        for i in range(0, len(params), MOST_PARAMETERS):
            self.client.log_batch(self.id, params=params[i:i + MOST_PARAMETERS])
        return {"run_id": self.id}

    def write(self, step, name, context, value):
        if isinstance(value, list):
            return  # MLflow has no histograms
        name = series(name, context)
        if isinstance(value, dict):
            text, suffix = (value["svg"], "svg") if "svg" in value else (value["text"], "txt")
            path = f"{name}/{step}.{suffix}"
            if any(part in ("", ".", "..") or len(part.encode()) > MOST_BYTES for part in path.split("/")):
                raise ValueError(f"{path} is no path of an artifact")
            self.client.log_text(self.id, text, path)
            return
        self.metrics.append(self.entities.Metric(name, value, int(1000 * time.time()), step))
        if len(self.metrics) == MOST_METRICS:
            self.flush()

    def flush(self):
        metrics, self.metrics = self.metrics, []
        if not metrics:
            return
        try:
            self.client.log_batch(self.id, metrics=metrics)
        except self.mlflow.MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE":
                raise
            if len(metrics) == 1:
                raise ValueError(f"{metrics[0].key}: {error}") from error
            for metric in metrics:
                self.metrics = [metric]
                refuse_or(self.flush)

    def close(self, outcome):
        self.flush()
        self.client.set_terminated(self.id, status={"completed": "FINISHED", "stopped": "KILLED"}.get(outcome, "FAILED"))


PROVIDERS = {"aim": Aim, "wandb": Wandb, "mlflow": Mlflow}


def answer(**message):
    try:
        os.write(ANSWERS, (json.dumps(message) + "\n").encode())
    except (BrokenPipeError, ConnectionResetError):
        pass  # the training process has ended; what it has sent is still written


def read_some():
    """Returns nothing at the end of the input."""
    try:
        return sys.stdin.buffer.read1(1 << 16)
    except ConnectionResetError:  # the training process has ended without reading the last answers
        return b""


def refuse_or(write, *arguments):
    """Values that the SDK finds wrong are left out; all other errors end the run."""
    try:
        write(*arguments)
    except (TypeError, ValueError) as error:
        answer(refused=str(error))


def write_line(backend, line):
    step, name, context, value = line
    if isinstance(value, list):
        value = [float(count) for count in value]
    elif not isinstance(value, dict):
        value = float(value)  # a whole number too: Aim's series have one type
    refuse_or(backend.write, step, name, context, value)


# What the SDK did not take in time stands in a file: a line {"provider", "config", "open"} with the state of the run, then lines
# as above, and {"close": ..} if the run has been closed.


def spool_of(provider, config, state):
    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in state.get("run_id") or state["restart_hash"])
    return Path(config["spool_dir"]) / f"{provider}-{name}.jsonl"


def lines_of(path):
    lines = []
    for line in path.read_bytes().split(b"\n"):  # splitlines() also cuts at characters that a text may have
        try:
            lines.append(json.loads(line))
        except ValueError:
            pass  # cut by a full disk, or what follows the last line
    return lines


def take_spool(path, take):
    """Calls take(path) and removes the file, unless another job is writing it."""
    lock = path.with_name(path.name + ".lock")
    try:
        with open(lock, "a") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                if path.exists():  # else a job that started at the same time has taken it
                    take(path)
                    path.unlink()
            finally:
                lock.unlink()
    except BlockingIOError:
        pass
    except Exception as error:
        print(f"d9d: {path} is kept for another time: {error}", file=sys.stderr, flush=True)


def replay_run(path, after_each):
    """Adds the values of the file to their own run."""
    lines = lines_of(path)
    if not lines:
        return  # the disk was full from the first line on
    first, *lines = lines
    backend = PROVIDERS[first["provider"]](first["config"])
    backend.open(first["open"])
    outcome = "failed"
    for line in lines:
        if isinstance(line, list):
            write_line(backend, line)
            after_each()
        else:
            outcome = line["close"]
    backend.close(outcome)


def replay_into(backend, path, last_step=math.inf, after_each=lambda: None):
    """Adds the values of the file to the run that goes on, which repeats the steps after `last_step`."""
    for line in lines_of(path)[1:]:
        if isinstance(line, list) and line[0] <= last_step:
            write_line(backend, line)
            after_each()
    backend.flush()


class Helper:
    def __init__(self):
        self.backend = None
        self.outcome = None
        self.num_done = self.num_told = 0  # lines of values
        self.told_at = time.monotonic()

    def start(self, request):
        self.provider, self.config = request["provider"], request["config"]
        spec = importlib.util.find_spec(self.provider)
        if spec is None or spec.origin is None:
            answer(error=f"no module named '{self.provider}'")
            sys.exit(1)
        try:
            version = importlib.metadata.version(self.provider)
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"
        answer(ready=version)
        self.sdk = PROVIDERS[self.provider](self.config)

    def open(self, request):
        state = request["resume_state"] or {}
        try:
            new_state = self.sdk.open(request)
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")
            sys.exit(1)
        self.backend = self.sdk
        own = spool_of(self.provider, self.config, new_state)
        if state and own.exists():
            take_spool(own, lambda path: replay_into(self.backend, path, state.get("last_step", -1)))
        answer(opened={"state": new_state, "spool": str(own), "warning": getattr(self.sdk, "warning", None)})
        # Those of other runs: however long that takes, the job goes on.
        for path in sorted(own.parent.glob(f"{self.provider}-*.jsonl")):
            if path != own:
                take_spool(path, lambda spool: replay_run(spool, self.tell_in_time))

    def take(self, lines):
        """Returns False after the last line."""
        for line in lines:
            message = json.loads(line)
            if isinstance(message, list):
                write_line(self.backend, message)
                self.num_done += 1
                self.tell_in_time()
                continue
            (verb, argument), = message.items()
            if verb == "close":
                self.outcome = argument
                break
            getattr(self, verb)(argument)
        if self.num_done > self.num_told:
            self.tell()
        return self.outcome is None

    def replay(self, path):
        take_spool(Path(path), lambda spool: replay_into(self.backend, spool, after_each=self.tell_in_time))

    def tell_in_time(self):
        if time.monotonic() > self.told_at + MOST_SECONDS:
            self.tell()

    def tell(self):
        refuse_or(self.backend.flush)
        answer(done=self.num_done)
        self.num_told, self.told_at = self.num_done, time.monotonic()

    def run(self):
        rest = []  # the beginning of a line
        while chunk := read_some():
            *lines, last = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*rest, lines[0]])
                rest = []
            rest.append(last)
            if not self.take(lines):
                break
        if self.backend is not None:
            self.backend.close(self.outcome or "failed")
            answer(closed=True)


# The parent alone decides when this process ends; what the SDK prints goes to standard error.
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ANSWERS = os.dup(1)
os.dup2(2, 1)
try:
    Helper().run()
except Exception as failure:
    answer(failed=f"{type(failure).__name__}: {failure}")
    sys.exit(1)
