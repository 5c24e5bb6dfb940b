"""The part of Aim's interface that d9d uses. A repository is a folder of files, <run hash>.jsonl."""

import os
import uuid

import stub_sdk


class Distribution:
    def __init__(self, *, hist, bin_range):
        self.said = {"hist": hist, "bin_range": bin_range}


class Text:
    def __init__(self, text):
        self.said = {"text": text}


class Run:
    def __init__(self, run_hash=None, *, repo, log_system_params, capture_terminal_logs, system_tracking_interval):
        self.hash = run_hash or uuid.uuid4().hex[:24]
        self._file = stub_sdk.RunFile(os.path.join(repo, f"{self.hash}.jsonl"))
        self._file.note("open", log_system_params, capture_terminal_logs, system_tracking_interval)

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name in ("name", "description"):
            self._file.note(name, value)

    def __setitem__(self, key, value):
        self._file.note("set", key, value)

    def track(self, value, *, name, step, context):
        self._file.suffer(name, step)
        self._file.note("track", step, name, context, getattr(value, "said", value))

    def report_successful_finish(self, *, block):
        self._file.note("successful")

    def close(self):
        self._file.note("close")
