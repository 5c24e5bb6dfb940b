"""The part of W&B's interface that d9d uses. A run is <dir>/<run id>.jsonl."""

import os
import tempfile
import uuid

import stub_sdk


run = None  # the one that is open, and was opened first


class Settings:
    def __init__(self, *, console, reinit=None):
        self.console, self.reinit = console, reinit


class Histogram:
    def __init__(self, *, np_histogram):
        self.said = np_histogram


class Html:
    def __init__(self, data, inject):
        self.said = {"html": data, "inject": inject}


class Run:
    step = 0

    def __init__(self, folder, run_id):
        self.id = run_id
        self._file = stub_sdk.RunFile(os.path.join(folder, f"{run_id}.jsonl"))

    def log(self, row, *, step):
        self._file.note("log", step, {name: getattr(value, "said", value) for name, value in row.items()})

    def mark_preempting(self):
        self._file.note("preempting")

    def finish(self, *, exit_code):
        self._file.note("finish", exit_code)


def init(*, project, entity, group, tags, mode, dir, name, notes, config, id, resume, settings):
    global run
    if run is not None and settings.reinit != "create_new":
        return run  # as W&B does
    if not os.path.isdir(os.path.dirname(dir)):  # as W&B does
        dir = tempfile.mkdtemp()
    opened = Run(dir, id or uuid.uuid4().hex[:8])
    opened._file.note("init", project, entity, group, tags, mode, name, notes, config, resume, settings.console)
    run = run or opened
    return opened
