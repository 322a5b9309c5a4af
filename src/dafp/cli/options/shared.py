"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import NAMED_SETS, PRESETS

# ---- a network -----------------------------------------------------------------------------------

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A built-in model (vgg16, preresnet56, resnet20, …), timm:NAME, torchvision:NAME, "
        "package.module:function for a function of yours that returns a model, a .safetensors "
        "file that dafp saved, or the directory of a run.",
    ),
]
ModelOrSaved = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Directory of a run (its final model), a .safetensors file that dafp wrote, or a "
        "network by name (vgg16, timm:NAME, package.module:function) with --weights.",
    ),
]
Builder = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="BUILDER",
        help="For a saved file: what builds its network, e.g. mynets:small; needed if the file "
        "does not say it.",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Import and run the function that a saved file names as its builder: for files that "
        "you trust.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="Trained weights to load first (a state dict): .safetensors, .pt or .pth."),
]
Shape = Annotated[
    str | None, typer.Option("--input", help="Shape of the example, e.g. 1,3,224,224.")
]
Classes = Annotated[int | None, typer.Option(help="Number of classes of the model.")]
Width = Annotated[float, typer.Option(help="Width multiplier, for built-in models.")]
Residual = Annotated[
    str,
    typer.Option(help="Residual streams: 'keep' them whole, or 'couple' to prune them jointly."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Layer (or pattern) not to prune, e.g. 'layer4.*'; may be repeated."),
]

RoundTo = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER|auto",
        help="Keep a multiple of this many channels in every layer, as processors compute channels "
        "in blocks; 'auto': 16, or 8, 4 or 2 where layers are narrow; for a target of latency, "
        "as measured on the slowest layers.",
        show_default="auto for macs and latency; 1 for others, and with --rule",
    ),
]
MinChannels = Annotated[
    int | None,
    typer.Option(help="Channels that every layer keeps at least.", min=1, show_default="1"),
]

# ---- a configuration -----------------------------------------------------------------------------

_PRESET = typer.Option(help=f"Settings to start from: {', '.join(PRESETS)}.")
Preset = Annotated[str, _PRESET]
PresetIfAny = Annotated[str | None, _PRESET]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file of settings; they replace those of the preset."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one setting (`dafp settings` lists them); may be repeated.",
    ),
]
SetModel = Annotated[
    str | None,
    typer.Option(
        help="Network: vgg16, …, timm:NAME, torchvision:NAME, or package.module:function "
        "for a function of yours that takes num_classes."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|folder:DIR",
        help=f"Images: {', '.join(NAMED_SETS)}, or folder:DIR for a directory of your own.",
    ),
]
Root = Annotated[
    Path | None,
    typer.Option(help="Directory of the files of cifar10, svhn, …", show_default="data"),
]
SkipUnreadable = Annotated[
    bool, typer.Option("--skip-unreadable", help="Leave out images that cannot be decoded.")
]
Recalibrate = Annotated[
    bool,
    typer.Option(
        "--recalibrate", help="Recompute BN statistics on training images before fine-tuning."
    ),
]

# ---- a sweep of jobs -----------------------------------------------------------------------------

Results = Annotated[
    Path | None,
    typer.Option(
        help="File of the results (.jsonl, a row per job), or a directory for results.jsonl; "
        "else OUT/results."
    ),
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="local|auto|ADDRESS", help="Run the jobs through Ray."),
]
Cpus = Annotated[int, typer.Option(help="CPUs per job, with --ray.")]
Gpus = Annotated[float, typer.Option(help="GPUs per job, with --ray.")]
Retries = Annotated[
    int, typer.Option(help="How often to restart a job whose worker was lost, with --ray.")
]

# ---- output --------------------------------------------------------------------------------------

Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
