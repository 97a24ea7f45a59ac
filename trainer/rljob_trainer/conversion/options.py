"""Options of `python -m rljob_trainer data`. Nothing is imported here that takes time: every command of the trainer reads this."""

import argparse
from pathlib import Path

FROM_COPY = {
    "gsm8k": "GSM8K: train and test, as openai/gsm8k holds them",
    "math": "MATH: train and test, as EleutherAI/hendrycks_math holds them; MATH-500 as held-out rows",
    "dapo-math-17k": "DAPO-Math-17k, as BytedTsinghua-SIA/DAPO-Math-17k holds it, without its hundredfold repetition",
    "geometry3k": "Geometry3K, problems with a picture: train, validation and test, as hiyouga/geometry3k holds them",
    "aime": "AIME problems of any year, as held-out rows",
}
"""Sets that are converted, each with what `--help` says of it."""
HELD_OUT = 256
"""Prompts that are held out of a set without a test split."""


def add_sets(data: argparse.ArgumentParser) -> None:
    """One subcommand for each set."""
    sets = data.add_subparsers(required=True, metavar="SET", dest="set")
    for name, text in FROM_COPY.items():
        _from_copy(_with_output(sets, name, text))
    held_out = sets.choices["dapo-math-17k"]
    held_out.add_argument(
        "--held-out", type=int, default=HELD_OUT, metavar="N", help="prompts to hold out (%(default)s)"
    )
    arithmetic = _with_output(sets, "arithmetic", "all additions of two two-digit numbers; made here")
    for drawn in (held_out, arithmetic):
        drawn.add_argument("--seed", type=int, default=0, help="of the draw of held-out prompts (%(default)s)")


def _with_output(
    sets: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, text: str
) -> argparse.ArgumentParser:
    known = sets.add_parser(name, help=text, description=f"{text}. Writes train.parquet and heldout.parquet.")
    known.add_argument("out", type=Path, metavar="OUT", help="directory for the files")
    return known


def _from_copy(known: argparse.ArgumentParser) -> None:
    known.add_argument(
        "--from",
        dest="copy",
        type=Path,
        action="append",
        required=True,
        metavar="DIR_OR_FILE",
        help="a local copy of the set; may be repeated",
    )
