"""What the stubs of the SDKs share: a run is a file with a JSON line for each call, and some values do harm.

    die      once, the process is killed
    freeze   once, it is stopped
    wait     once, it blocks until somebody opens the FIFO `gate` beside the run's file
    wrong    the SDK finds it invalid

D9D_STUB_HARM=die:loss:1 gives the value of "loss" in step 1 the effect of one named "die".
"""

import json
import os
import signal
from pathlib import Path


class RunFile:
    def __init__(self, path):
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(self.path, "a")

    def note(self, *call):
        self.file.write(json.dumps(call).replace("NaN", '"NaN"') + "\n")
        self.file.flush()

    def suffer(self, name, step):
        """Does what a value of this name does to the SDK."""
        harm, *value = os.environ.get("D9D_STUB_HARM", "").split(":")
        if value == [name, str(step)]:
            name = harm
        if name == "wrong":
            raise ValueError("'wrong' is no name")
        harms = {"die": lambda: os.kill(os.getpid(), signal.SIGKILL), "freeze": lambda: os.kill(os.getpid(), signal.SIGSTOP),
                 "wait": lambda: open(self.path.with_name("gate")).read()}
        marker = self.path.with_name(f"{name}.done")
        if name in harms and not marker.exists():
            marker.touch()
            harms[name]()
