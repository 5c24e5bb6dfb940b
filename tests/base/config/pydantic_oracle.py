"""Parses JSON texts with pydantic: reads [{"type", "text"}, ...], writes [{"accepted", "value"}, ...].

Usage: pydantic_oracle.py CASES.json RESULTS.json
"""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError


class Color(StrEnum):
    red = "red"
    dark_blue = "dark_blue"


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Circle(Record):
    shape: Literal["circle"] = "circle"
    radius: Annotated[float, Field(gt=0)]


class Square(Record):
    shape: Literal["square"] = "square"
    width: int = 1
    color: Color = Color.red


Shape = Annotated[Circle | Square, Field(discriminator="shape")]


class Drawing(Record):
    name: str
    note: str | None  # nullable, but the key is required
    count: Annotated[int, Field(ge=1)] = 3
    shapes: list[Shape] = []
    frame: Shape | None = None


TYPES = {
    "integer": int,
    "number": float,
    "boolean": bool,
    "string": str,
    "path": Path,
    "color": Color,
    "nullable": int | None,
    "list": list[str],
    "pair": tuple[float, float],
    "map": dict[str, int],
    "drawing": Drawing,
}


def judge(case):
    adapter = TypeAdapter(TYPES[case["type"]])
    try:
        value = adapter.validate_json(case["text"])
    except ValidationError:
        return {"accepted": False}
    return {"accepted": True, "value": adapter.dump_python(value, mode="json")}


def main():
    cases, results = map(Path, sys.argv[1:])
    results.write_text(json.dumps([judge(case) for case in json.loads(cases.read_text())]))


main()
