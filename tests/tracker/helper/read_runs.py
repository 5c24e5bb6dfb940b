"""Prints, as JSON, the runs that the official readers find: read_runs.py aim|wandb|mlflow PLACE.

{"<run id>": {"name": .., "description": .., "hparams": {..}, "status": .., "series": {"<name>": [[step, value], ..]}}}; for wandb a
list of such, one a folder. "pictures" are texts of SVG. Run with the interpreter of .venv-trackers.
"""

import json
import math
import subprocess
import sys
from pathlib import Path


def plain(value):
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_aim(place):
    subprocess.run([sys.executable, "-c", "from aim.cli.cli import cli_entry_point; cli_entry_point()", "storage", "--repo", place,
                    "reindex", "-y"], check=True, capture_output=True)
    from aim import Repo

    kinds = {"float": ("get_metric", plain), "int": ("get_metric", plain), "aim.text": ("get_text_sequence", lambda text: text.data),
             "aim.distribution": ("get_distribution_sequence", lambda d: [part.tolist() for part in d.to_np_histogram()])}
    runs = {}
    for run in Repo(place).iter_runs():
        series = {}
        for kind, (getter, shown) in kinds.items():
            for name, context, _ in run.iter_sequence_info_by_type(kind):
                if not name.startswith("__system__"):
                    key = "/".join([*context.to_dict().values(), name])
                    series[key] = [[step, shown(value)] for step, (value, *_) in getattr(run, getter)(name, context).data.items()]
        runs[run.hash] = {"name": run.name, "description": run.description, "hparams": run.get("hparams"),
                          "status": run.get("status"), "series": series}
    return runs


def read_wandb(place):
    runs = []
    for folder in sorted(Path(place).glob("wandb/offline-run-*")):
        def inspect(*options):
            return subprocess.run([sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, folder], check=True,
                                  capture_output=True, text=True).stdout

        said = json.loads(inspect("--summary"))
        series = {}
        for record in map(json.loads, inspect().splitlines()):
            for name, value in record.get("history", {}).get("item", {}).items():
                if not name.startswith("_"):
                    series.setdefault(name, []).append([record["history"]["item"]["_step"], value])
        runs.append({"id": said["run_id"], "name": said["name"], "description": said["notes"], "hparams": said["config"],
                     "status": said["state"], "tags": said["tags"], "series": series,
                     "pictures": sorted(file.read_text() for file in folder.glob("files/media/html/**/*.html"))})
    return runs


def read_mlflow(place):
    from mlflow import MlflowClient

    client, runs = MlflowClient(place), {}
    for run in client.search_runs([experiment.experiment_id for experiment in client.search_experiments()]):
        histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        pictures = {file.path: Path(client.download_artifacts(run.info.run_id, file.path)).read_text()
                    for file in client.list_artifacts(run.info.run_id, "train/plot")}
        runs[run.info.run_id] = {"name": run.info.run_name, "description": run.data.tags.get("mlflow.note.content"),
                                 "hparams": run.data.params, "status": run.info.status,
                                 "series": {name: [[metric.step, plain(metric.value)] for metric in history]
                                            for name, history in histories.items()},
                                 "pictures": pictures}
    return runs


print(json.dumps({"aim": read_aim, "wandb": read_wandb, "mlflow": read_mlflow}[sys.argv[1]](sys.argv[2])))
