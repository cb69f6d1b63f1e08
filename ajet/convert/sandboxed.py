"""Runs a script in bash with stand-ins for all commands. The sandbox executes this file's text, so
only the standard library is used, and nothing of ajet.
"""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = """
python python2 python3 python3.8 python3.9 python3.10 python3.11 python3.12 python3.13
python3.14 uv poetry torchrun ray accelerate deepspeed srun sbatch salloc scontrol squeue sinfo
mpirun nohup ssh pdsh docker podman singularity apptainer kubectl tmux screen numactl taskset
nice stdbuf setsid timeout sudo env bash sh dash zsh git git-lfs pip pip3 conda mamba nvidia-smi
hostname date whoami id nproc free df du ls find ps lsof netstat ss ip ifconfig curl wget
huggingface-cli hf modelscope wandb swanlab mkdir touch cp ln chmod tee rm mv rmdir sleep clear
sync stty tput reset pkill killall which module dirname basename seq expr realpath readlink
mktemp uname cat grep egrep sed awk gawk head tail wc sort uniq tr cut rev paste xargs bc jq
column fold tac nl tar unzip gzip apt apt-get hdfs aws gsutil printenv uuidgen openssl md5sum
sha256sum
""".split()  # noqa: SIM905  # one name per line would be a hundred lines
"""Commands that `command -v` finds. `command_not_found_handle` stands in for all others."""
MOST_RECORDS, MOST_CPU_S = 400, 2
POLL_S = 0.02
NOT_HERE = re.compile(r": line \d+: (.+): No such file or directory$", re.MULTILINE)
TEST = re.compile(r"\[\[\s.*?\s\]\]")


def main(settings: dict[str, Any]) -> None:
    """Prints the results of `settings["runs"]`. Each run starts with the same files, at their paths
    of the host below the folder `root`."""
    scratch = Path.cwd()
    results = [run_once(scratch, settings, run) for run in settings["runs"]]
    print(json.dumps(results))


def run_once(scratch: Path, settings: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    for name in ("root", "bin", "records", "tmp"):
        shutil.rmtree(scratch / name, ignore_errors=True)
        (scratch / name).mkdir()
    # The script sees its files at their host paths below this folder, and can write there.
    root = scratch / "root"
    for path, text in settings["files"].items():
        file = root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if not run["has_files"] else TEST.sub(without_file_tests, text))
    folder = root / settings["folder"].lstrip("/")
    home = root / "ajet-home"
    for directory in (folder, home):
        directory.mkdir(parents=True, exist_ok=True)
    stand_ins = write_stand_ins(scratch, settings, run)
    environment = {"HOME": str(home), "PATH": str(scratch / "bin"), "BASH_ENV": str(stand_ins)}
    environment |= {"TMPDIR": str(scratch / "tmp"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    environment |= {"PWD": str(folder)} | run["variables"]
    errors = scratch / "errors"
    with errors.open("wb") as stream:
        # Its own session, so that everything it starts can be killed as one group.
        process = subprocess.Popen(
            [settings["bash"], str(root / settings["script"].lstrip("/")), *run["arguments"]],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stream,
            start_new_session=True,
            preexec_fn=limit_cpu,
        )
        exit_code = wait_for(process, scratch / "records", settings["timeout_s"])
    lines = errors.read_bytes()[-4000:].decode("utf-8", "replace").strip().splitlines()
    return {
        "commands": commands(scratch / "records"),
        "exit_code": exit_code,
        "error": lines[-1][-300:] if lines else "",
        "not_here": list(dict.fromkeys(NOT_HERE.findall("\n".join(lines)))),
        "bin": str(scratch / "bin"),
        "root": str(root),
        "home": str(home),
        "folder": str(folder),
    }


def without_file_tests(test: re.Match[str]) -> str:
    """Returns a test `[[ … ]]` for which every file is there; stand_ins.bash does this for `[`."""
    return re.sub(r"(?<=\s)-[defrswx](?=\s)", "-n", test[0])


def limit_cpu() -> None:
    """Ends an endless loop, even on a busy machine where wall-clock limits take longer."""
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))


def write_stand_ins(scratch: Path, settings: dict[str, Any], run: dict[str, Any]) -> Path:
    """Writes the file that every bash reads first, and a command for each name."""
    values = {
        "bin": scratch / "bin",
        "bash": settings["bash"],
        "records": scratch / "records",
        "root": scratch / "root",
        "output": run["output"],
        "status": run["status"],
        "takes_branches": run["takes_branches"],
        "has_files": run["has_files"],
    }
    lines = [f"__ajet_{name}='{value}'" for name, value in values.items()]
    file = scratch / "stand_ins.bash"
    file.write_text("\n".join([*lines, settings["stand_ins"]]))
    for name in NAMES:
        command = scratch / "bin" / name
        command.write_text(f'#!{settings["bash"]}\n__ajet_in=1\n__ajet_run {name} "$@"\n')
        command.chmod(0o755)
    return file


def wait_for(process: subprocess.Popen[bytes], records: Path, timeout_s: float) -> int | None:
    """Waits for the script and everything that it started. Returns None if it was ended: after
    `timeout_s`, `MOST_RECORDS` or `MOST_CPU_S`."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if time.monotonic() > deadline or len(list(records.iterdir())) > MOST_RECORDS:
            break
        time.sleep(POLL_S)
    # The script may end while commands in its background still run and print.
    exit_code = process.poll()
    while exit_code is not None and has_group(process.pid) and time.monotonic() < deadline:
        time.sleep(POLL_S)  # commands in the background
    if has_group(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return None if exit_code is None or exit_code < 0 else exit_code


def has_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def commands(records: Path) -> list[list[str]]:
    """Returns the recorded commands in the order in which they were called."""
    texts = [record.read_bytes() for record in sorted(records.iterdir())]
    return [
        [word.decode("utf-8", "replace") for word in text.split(b"\0")[:-1]]
        for text in texts[:MOST_RECORDS]
    ]
