"""Compares what `ajet convert` reads from scripts with the arguments that bash really passes.

    python -m benchmarks.convert_scripts FOLDER [--out FILE]

FOLDER has scripts that start verl. Each one is run by plain bash with stand-ins on PATH that only
record their arguments, without network and with an empty home folder. The recorded call is
converted as one command, the script by `ajet convert`, and both results are compared key by key. A
key is wrong if it has another value; one left blank is counted separately. The results name the
scripts, and none of their text. A script whose call plain bash does not reach, because a file or a
variable is missing, is counted and not compared. Claim: no essential value is wrong, and at least
98 % of the others give the same values, apart from names and blanks.
"""

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ajet.convert import Conversion, convert
from ajet.convert.conversion import SYSTEMS
from ajet.convert.draft import NAMES
from ajet.core.errors import ConfigError
from benchmarks.report import options, write

RECORDED = """
python python3 python3.12 ray torchrun uv conda srun sbatch scontrol accelerate nohup pip git
curl wget hf nvidia-smi hostname sudo docker tmux module ssh kill pkill killall rm mv cp ln
chmod touch mkdir sleep huggingface-cli wandb env numactl
""".split()  # noqa: SIM905  # one name per line would be longer than the program
STAND_IN = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" > "$RECORDS/$(printf %04d "$(ls "$RECORDS" | wc -l)")"
"""
ESSENTIAL = (
    "ajet.model.path", "ajet.data", "ajet.rollout.num_repeat", "ajet.rollout.temperature",
    "ajet.rollout.top_", "ajet.rollout.val_kwargs", "ajet.rollout.max_",
    "ajet.trainer_common.algorithm", "ajet.trainer_common.optim", "ajet.trainer_common.lora",
    "ajet.trainer_common.use_kl_loss", "ajet.trainer_common.kl_", "ajet.trainer_common.critic",
    "ajet.trainer_common.mini_batch_num", "ajet.trainer_common.ppo_epochs", "trinity.",
)  # fmt: skip
"""Prefixes of the keys that decide what is trained."""


def recorded_call(script: Path, scratch: Path) -> list[str]:
    """Runs the script in bash and returns the words of the first training that it starts."""
    home, here, stand_ins, records = (scratch / name for name in ("home", "here", "bin", "records"))
    for folder in (home, here, stand_ins, records):
        folder.mkdir()
    for name in RECORDED:
        (stand_ins / name).write_text(STAND_IN)
        (stand_ins / name).chmod(0o755)
    # A script that puts /bin in front of PATH gets the functions.
    functions = scratch / "functions"
    functions.write_text(
        "".join(f'{name}() {{ "{stand_ins}/{name}" "$@"; }}\n' for name in RECORDED)
    )
    environment = {"PATH": f"{stand_ins}:/usr/bin:/bin", "HOME": str(home), "RECORDS": str(records)}
    environment["BASH_ENV"] = str(functions)
    command = ["unshare", "-rn", "bash", str(script)]
    subprocess.run(command, cwd=here, env=environment, capture_output=True, timeout=60, check=False)
    entry = SYSTEMS["verl"].entry
    for record in sorted(records.iterdir()):
        words = record.read_bytes().decode(errors="replace").split("\0")[:-1]
        for place, word in enumerate(words):
            options = words[place + 1 :]
            takes_keys = any(option.startswith(entry) and "=" in option for option in options)
            is_program = words[place - 1] == "-m" and any(part in word for part in entry)
            if is_program or (takes_keys and (words[place - 1] == "-m" or word.endswith(".py"))):
                words = [text.replace(str(home), "~").replace(str(here), ".") for text in words]
                # ajet runs a script where it is.
                return [text.replace(str(script.parent), ".") for text in words[place:]]
    return []


def converted_call(words: list[str], scratch: Path) -> Conversion:
    script = scratch / "call.sh"
    option = "" if words[0].endswith(".py") else "-m "
    script.write_text(f"python3 {option}{shlex.join(words)}\n")
    return convert("verl", script)


def compared(script: Path) -> dict[str, Any]:
    """Returns the script's name, and how many keys are the same, blank, wrong or missing."""
    with tempfile.TemporaryDirectory() as folder:
        words = recorded_call(script, Path(folder))
        result: dict[str, Any] = {"script": script.name, "arguments": max(0, len(words) - 1)}
        try:
            ours = convert("verl", script)
        except ConfigError:
            return result | {"refused": True}
        if not words:
            return result | {"blank": sorted(ours.blanks)}
        truth = converted_call(words, Path(folder))
    keys = (ours.values | truth.values).keys() - ours.blanks.keys() - set(NAMES)
    differ = sorted(key for key in keys if ours.values.get(key) != truth.values.get(key))
    return result | {
        "same": len(keys) - len(differ),
        "blank": sorted(ours.blanks.keys() - truth.blanks.keys()),
        "differ": differ,
        "essential": [key for key in differ if key.startswith(ESSENTIAL)],
    }


def main() -> None:
    parser = options(__doc__, "convert_scripts")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    out, scripts = arguments.out.absolute(), []
    os.chdir(arguments.folder)
    for script in sorted(Path().glob("*.sh")):
        scripts.append(compared(script.resolve()))
        print(json.dumps(scripts[-1]), flush=True)
    known = [script for script in scripts if "differ" in script]
    report = {
        "num_scripts": len(scripts),
        "num_compared": len(known),
        "num_same": sum(not script["differ"] for script in known),
        "num_same_without_blanks": sum(not (s["differ"] or s["blank"]) for s in known),
        "num_essential_wrong": sum(bool(script["essential"]) for script in known),
        "num_refused": sum("refused" in script for script in scripts),
        "scripts": scripts,
    }
    write(out, report)


if __name__ == "__main__":
    main()
