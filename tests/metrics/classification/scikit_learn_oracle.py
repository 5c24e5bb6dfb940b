#!/usr/bin/env python3
"""What scikit-learn says of the cases of a JSON file; prints a list of results, with null for NaN. Where torchmetrics says the
same by its own rules (all classes occur among targets and predictions), it is compared too.

  scikit_learn_oracle.py CASES
"""

import json
import math
import sys
import warnings

import numpy as np
import torch
from sklearn import metrics as sk
from torchmetrics.functional import classification as tm

warnings.filterwarnings("ignore")  # of zero divisions, each of which is a case
AVERAGES = {"micro": "micro", "macro": "macro", "weighted": "weighted", "per_class": None}


def averaged(values: np.ndarray, support: np.ndarray, average: str):
    """The mean over classes as precision_score makes it."""
    kept = ~np.isnan(values)
    if average == "per_class":
        return values
    if not kept.any():
        return math.nan
    weights = support[kept] if average == "weighted" and support[kept].any() else None
    return np.average(values[kept], weights=weights)


def by_column(score, truth: np.ndarray, chosen: np.ndarray, average: str):
    """A score of sklearn that knows no averages, of each class against the others."""
    if average == "micro":
        return score(truth.ravel(), chosen.ravel())
    columns = np.array([score(truth[:, c], chosen[:, c]) for c in range(truth.shape[1])])
    return averaged(columns, truth.sum(axis=0), average)


def statistic(case: dict, truth: np.ndarray, chosen: np.ndarray, classes: tuple | None):
    """truth, chosen: [N, C] of 0 and 1. classes: (targets, predictions) where each sample has one."""
    name, average, zero = case["statistic"], case["average"], case["zero_division"]
    zero = math.nan if zero is None else zero
    kind = case["problem"]
    if name == "specificity":
        return by_column(lambda t, p: sk.recall_score(t, p, pos_label=0, zero_division=zero), truth, chosen, average)
    if name == "one_vs_rest_accuracy" or (name == "accuracy" and kind != "multiclass"):
        return by_column(sk.accuracy_score, truth, chosen, average)
    if name == "accuracy" and average == "micro":
        if classes is not None:
            return sk.accuracy_score(*classes)
        scores, targets = np.array(case["scores"]), np.array(case["targets"])
        return sk.top_k_accuracy_score(targets, scores, k=case["top_k"], labels=range(truth.shape[1]))
    options = {"average": AVERAGES[average], "zero_division": zero}
    arguments = (truth, chosen)
    if kind == "binary":
        arguments, options["average"] = (truth[:, 0], chosen[:, 0]), "binary"
    elif classes is not None:
        arguments, options["labels"] = classes, range(truth.shape[1])
    if name == "accuracy" and average == "macro" and classes is not None and case["zero_division"] is None:
        return sk.balanced_accuracy_score(*classes)
    if name in ("accuracy", "recall"):
        return sk.recall_score(*arguments, **options)
    if name == "precision":
        return sk.precision_score(*arguments, **options)
    return sk.fbeta_score(*arguments, beta={"f1": 1, "f2": 2, "f0.5": 0.5}[name], **options)


def torchmetrics_statistic(case: dict, classes: tuple, num_classes: int):
    names = {"accuracy": tm.multiclass_accuracy, "precision": tm.multiclass_precision, "recall": tm.multiclass_recall,
             "f1": tm.multiclass_f1_score}
    if case["statistic"] not in names or any(len(set(each)) < num_classes for each in classes):
        return None
    targets, chosen = (torch.tensor(each) for each in classes)
    average = "none" if case["average"] == "per_class" else case["average"]
    return names[case["statistic"]](chosen, targets, num_classes, average=average).numpy()


def classification(case: dict):
    scores, targets = np.array(case["scores"]), np.array(case["targets"])
    if case["problem"] == "binary":
        return statistic(case, targets[:, None], (scores > case["threshold"]).astype(int)[:, None], None)
    if case["problem"] == "multilabel":
        return statistic(case, targets, (scores > case["threshold"]).astype(int), None)
    num_classes, k = scores.shape[1], case["top_k"]
    truth = np.eye(num_classes, dtype=int)[targets]
    best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    chosen = np.zeros_like(truth)
    np.put_along_axis(chosen, best, 1, axis=1)
    classes = (targets, best[:, 0]) if k == 1 else None
    result = statistic(case, truth, chosen, classes)
    if classes is not None:
        other = torchmetrics_statistic(case, classes, num_classes)
        assert other is None or np.allclose(other, result, atol=1e-5), (case["statistic"], case["average"], other, result)
    return result


def area(name: str, truth: np.ndarray, scores: np.ndarray) -> float:
    if name == "average_precision":
        return sk.average_precision_score(truth, scores) if truth.any() else 0.0
    if len(set(truth.tolist())) < 2:
        return 0.5
    result = sk.roc_auc_score(truth, scores)
    other = tm.binary_auroc(torch.tensor(scores), torch.tensor(truth), thresholds=None).item()
    assert abs(other - result) < 1e-5, (other, result)
    return result


def curve(case: dict):
    scores, targets = np.array(case["scores"]), np.array(case["targets"])
    if scores.ndim == 1:
        return area(case["curve"], targets, scores)
    truth = np.eye(scores.shape[1], dtype=int)[targets]
    return by_column(lambda t, s: area(case["curve"], t, s), truth, scores, case["average"])


def main() -> None:
    with open(sys.argv[1]) as file:
        data = json.load(file)
    results = []
    for case in data["cases"]:
        case.update(data["inputs"][case["inputs"]])
        result = np.atleast_1d(classification(case) if "statistic" in case else curve(case)).tolist()
        results.append([None if math.isnan(value) else value for value in result])
    print(json.dumps(results))


main()
