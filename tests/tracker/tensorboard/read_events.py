"""Prints the values that TensorBoard's own reader finds in a folder of event files, as one line of JSON.

usage: read_events.py <log_dir>
Numbers are C99 hexadecimal strings, which preserve every bit, NaN and infinity.
"""

import json
import logging
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

logging.disable(logging.CRITICAL)  # it warns about the steps that it drops
accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
accumulator.Reload()
tags = accumulator.Tags()


def histogram(value):
    numbers = [value.min, value.max, value.num, value.sum, value.sum_squares, *value.bucket_limit, *value.bucket]
    return [number.hex() for number in map(float, numbers)]


def text(event):
    assert accumulator.SummaryMetadata("run").plugin_data.plugin_name == "text"
    return event.tensor_proto.string_val[0].decode()


json.dump(
    {
        "file_version": accumulator.file_version,
        "scalars": {tag: [[e.step, e.value.hex()] for e in accumulator.Scalars(tag)] for tag in tags["scalars"]},
        "histograms": {
            tag: [[e.step, histogram(e.histogram_value)] for e in accumulator.Histograms(tag)]
            for tag in tags["histograms"]
        },
        "texts": {tag: [[e.step, text(e)] for e in accumulator.Tensors(tag)] for tag in tags["tensors"]},
        "wall_times": [e.wall_time for tag in tags["scalars"] for e in accumulator.Scalars(tag)],
    },
    sys.stdout,
)
