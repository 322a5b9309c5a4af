"""Made-up results of jobs, for tables and pages."""


def record(config, final, pruned=0.5, macs=40, collapsed=""):
    """What a job leaves, with made-up numbers."""
    stages = [
        {"stage": "baseline", "accuracy": 0.9, "macs": 100, "params": 200},
        {"stage": "sparse", "accuracy": 0.8, "macs": 100, "params": 200},
        {"stage": "pruned", "accuracy": pruned, "macs": macs, "params": 50},
        {"stage": "finetuned", "accuracy": final, "macs": macs, "params": 50},
    ]
    result = {
        "stages": stages[:2] if collapsed else stages, "sparsity": {"removed": 0.5},
        "machine": {"cpu": "abacus", "threads": 3}, "versions": {"torch": "9.9"},
    }  # fmt: skip
    if collapsed:
        result |= {"collapsed": collapsed, "collapsed_accuracy": 0.25}
    return {
        "dafp": "0", "config": {"seed": config.seed},
        "result": result, "kept": [["a", 8, 4], ["b", 12, 3]], "curves": {},
    }  # fmt: skip
