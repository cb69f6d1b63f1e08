"""Serve an environment on the loopback interface.

python -m ajet.environments.env_service --env sokoban --config '{"num_boxes": 1}' --port 8080
python -m ajet.environments.env_service --env frozen_lake --protocol openenv --port 8000
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ajet.core.environment.registry import EnvironmentMaker, environment_maker
from ajet.core.errors import ConfigError, OptionError
from ajet.environments.env_service.openenv_app import MAX_MESSAGE_BYTES, make_openenv_app
from ajet.environments.env_service.server import make_app

HOST = "127.0.0.1"


def main() -> None:
    import uvicorn

    from ajet.core.net.http_server import ServerLimits, limited_protocol, listening_socket

    parser = argparse.ArgumentParser(
        prog="ajet.environments.env_service",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--env", default="guess_number", help="as custom_envs.NAME.env_type; env_type for clients")
    add("--config", default="{}", help="its settings (env_config) as a JSON object")
    add("--protocol", choices=("agentjet", "openenv"), default="agentjet")
    add("--port", type=int, default=8080, help="on 127.0.0.1; 0: any free one")
    add("--num-train", type=int, default=64, help="tasks of the split train")
    add("--num-validation", type=int, default=16, help="tasks of the split validation")
    add("--project-dir", type=Path, default=Path.cwd(), help="where to look for file.py->Class")
    args = parser.parse_args()
    try:
        maker = checked_maker(args.env, args.config, [args.project_dir])
        listener = listening_socket(
            HOST, args.port, "the service", "choose another --port, or 0 for any free one"
        )
    except ConfigError as error:
        parser.error(error.with_code())
    splits = {"train": args.num_train, "validation": args.num_validation}
    if args.protocol == "openenv":
        app, ws = make_openenv_app(maker), "websockets"
    else:
        app, ws = make_app({args.env: maker}, splits), "none"
    config = uvicorn.Config(
        app,
        http=limited_protocol(ServerLimits()),
        ws=ws,
        ws_max_size=MAX_MESSAGE_BYTES,
        log_level="warning",
    )
    print(f"http://{HOST}:{listener.getsockname()[1]}  (Ctrl-C ends)", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def checked_maker(env_type: str, config: str, base_dirs: Sequence[Path]) -> EnvironmentMaker:
    """Returns a maker of the environment after making one environment with it; raises `ConfigError`
    if that fails."""
    try:
        settings: Any = json.loads(config)
    except ValueError as error:
        raise OptionError(f"--config: not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise OptionError("--config: write a JSON object, such as '{\"high\": 100}'")
    maker = environment_maker(env_type, settings, base_dirs, "--env")
    try:
        maker().close()
    except (TypeError, ValueError) as error:
        raise OptionError(f"--config: {' '.join(str(error).split())}") from error
    return maker


if __name__ == "__main__":
    main()
