"""One process of a run for tests: `python -m torch.distributed.run … ranks.py OUT`.

Each rank writes what it saw beside OUT: rank0.json, rank1.json.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import torch

from dafp.runs import pipeline, prune_and_finetune
from dafp.training.config import Config, Schedule
from dafp.training.loop import NoProgress
from support.training import tiny_data

CONFIG = Config(
    model="support.training:users_net", width=1.0, batch_size=16, threads=1, target=0.3,
    baseline=Schedule(0), sparse=Schedule(8, 0.05, ()), finetune=Schedule(12, 0.05),
)  # fmt: skip


def load_data(*args, **kwargs):
    return tiny_data(train=160, test=200)


class RecordingProgress(NoProgress):
    def __init__(self) -> None:
        self.rows: list[dict] = []

    def epoch(self, row) -> None:
        self.rows.append({k: v for k, v in row.items() if not k.endswith("_s")})


def main(out: Path) -> None:
    torch.set_num_threads(1)
    seen: dict = {"weights": {}, "written": []}
    pipeline.load_data = load_data
    train_stage, plan, replace = pipeline.train_stage, prune_and_finetune.choose_plan, os.replace

    def recording_stage(model, context, stage, *args, **options):
        rows = train_stage(model, context, stage, *args, **options)
        state = b"".join(t.cpu().numpy().tobytes() for t in model.state_dict().values())
        seen["weights"][stage] = hashlib.sha256(state).hexdigest()
        seen["world"] = context.accelerator.num_processes
        return rows

    def recording_plan(*args):
        found = plan(*args)
        seen["plan"] = found.to_json()
        return found

    def recording_replace(source, target):
        seen["written"].append(Path(target).name)
        replace(source, target)

    pipeline.train_stage = prune_and_finetune.train_stage = recording_stage
    prune_and_finetune.choose_plan, os.replace = recording_plan, recording_replace
    progress = RecordingProgress()
    seen["result"] = pipeline.run(CONFIG, out, progress)
    seen["rows"] = progress.rows
    rank = os.environ.get("RANK", "alone")
    out.with_name(f"rank{rank}.json").write_text(json.dumps(seen))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
