"""A script of Tinker's SDK whose server is killed at random moments: are the weights the same?

    python benchmarks/tinker_kills.py          # 20 kills, about five minutes on two cores

The script is that of tests/serve/tinker/test_tinker_restart.py: samples without a seed, rewards,
importance_sampling, steps. It runs three times: twice alone, once with kills.
"""

import hashlib
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from report import ROOT, options, write

sys.path.insert(0, str(ROOT))  # the script is the test's own

from tests.serve.tinker.server_process import ServerProcess
from tests.serve.tinker.test_tinker_restart import free_port, learn


def run(folder: Path, num_steps: int, num_kills: int) -> dict[str, object]:
    folder.mkdir()
    server, moments = ServerProcess(folder, free_port()), random.Random("kills")
    script = threading.Thread(target=learn, args=(server.address, num_steps))
    began_s, kills = time.monotonic(), 0
    script.start()
    while kills < num_kills:
        script.join(moments.uniform(0.05, 1.5))
        if not script.is_alive():
            break
        server.kill()
        server.start()
        kills += 1
    script.join()
    seconds = time.monotonic() - began_s
    server.kill()
    (file,) = server.root.glob("*/weights/end/step_*/model.safetensors")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return {"kills": kills, "steps": num_steps, "seconds": seconds, "weights_sha256": digest}


def main() -> None:
    args = options(__doc__, "tinker_kills", kills=20, steps=24).parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-tinker-") as name:
        kills = enumerate((0, 0, args.kills))
        runs = [run(Path(name) / f"{number}", args.steps, each) for number, each in kills]
    verdict = {"same_bits": len({each["weights_sha256"] for each in runs}) == 1}
    write(args.out, {"verdict": verdict, "runs": runs})
    print(json.dumps({"verdict": verdict, "runs": runs}, indent=2))


if __name__ == "__main__":
    main()
