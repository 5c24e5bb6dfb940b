"""The keys of a job file, from the JSON schema that a program prints.

A key is given by its path. `[tag]` after a key names the record of a union ([-]: the one without a tag), `[]` denotes
the entries of a list, `{}` the entries of an object with names of the user's own:

    trainer.gc.period_steps    data[text].paths    lr_scheduler[piecewise].scheduler.phases[][steps].curve[poly].power
"""


def keys(schema, path=""):
    """(key, schema of its value, its default or None where it is required) for each key, parents first."""
    found = {}
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    if alternatives is not None:
        records = [each for each in alternatives if "properties" in each]
        for each in alternatives:
            found |= keys(each, path + (f"[{tag_of(each)}]" if each in records and is_union(records) else ""))
    elif schema.get("type") == "array" and "items" in schema:
        found |= keys(schema["items"], path + "[]")
    elif isinstance(schema.get("additionalProperties"), dict):
        found |= keys(schema["additionalProperties"], path + "{}")
    else:
        for name, value in schema.get("properties", {}).items():
            if "const" in value:
                continue  # a tag: in the path
            key = f"{path}.{name}".lstrip(".")
            found[key] = (value, value.get("default"), name in schema.get("required", []))
            found |= keys(value, key)
    return found


def is_union(records):
    return len(records) > 1 or any(tag_of(record) != "-" for record in records)


def tag_of(record):
    return next((value["const"] for value in record.get("properties", {}).values() if "const" in value), "-")
