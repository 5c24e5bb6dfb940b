"""The part of MLflow's interface that d9d uses. A run is <tracking uri>/<run id>.jsonl, an experiment a folder there."""

import os
import uuid
from types import SimpleNamespace

import stub_sdk


class MlflowException(Exception):
    error_code = "INVALID_PARAMETER_VALUE"


class MlflowClient:
    def __init__(self, tracking_uri):
        self.folder = tracking_uri

    def _note(self, run_id, *call):
        stub_sdk.RunFile(os.path.join(self.folder, f"{run_id}.jsonl")).note(*call)

    def get_experiment_by_name(self, name):
        is_there = os.path.isdir(os.path.join(self.folder, name))
        return SimpleNamespace(experiment_id=f"of {name}") if is_there else None

    def create_experiment(self, name):
        os.makedirs(os.path.join(self.folder, name))
        return f"of {name}"

    def create_run(self, experiment_id, *, run_name, tags):
        run_id = uuid.uuid4().hex
        self._note(run_id, "create", experiment_id, run_name, tags)
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def update_run(self, run_id, *, status):
        self._note(run_id, "update", status)

    def log_batch(self, run_id, metrics=(), params=()):
        if any(metric.key == "wrong" for metric in metrics):
            raise MlflowException("'wrong' is no name")
        self._note(run_id, "log", [[metric.key, metric.value, metric.step] for metric in metrics],
                   [[param.key, param.value] for param in params])

    def log_text(self, run_id, text, path):
        self._note(run_id, "text", text, path)

    def set_terminated(self, run_id, *, status):
        self._note(run_id, "terminated", status)
