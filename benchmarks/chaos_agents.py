"""The agents of chaos.py's arms, appended to the workflow of the tests' toy run, the MCP server of
one of them, and the program of those in which explorer and trainer take turns in one process."""

from pathlib import Path

IN_TURNS = f"""
import sys

sys.path.append({str(Path(__file__).parents[1])!r})
from tests.backbones.disaggregated.one_process import fit_in_one_process
from ajet.core.config import load_config
from ajet.core.errors import AjetError, RunComplete

try:
    fit_in_one_process(load_config("toy.yaml", sys.argv[1:], backbone="trinity"))
except RunComplete as complete:
    print(complete)
except AjetError as error:
    sys.exit(f"error: {{error}}")
"""
FAULTY = r'''

class Faulty(Sandboxed):
    """One episode hangs, and one in eight of the others misbehaves in another way. Its id decides:
    it is the same in every attempt."""

    FAULTS = ("raises", "exits", "floods", "leaves a process", "leaves a file open")

    def fault_of(self, workflow_task):
        if workflow_task.episode_id == "000003-train-0001-02":
            return "hangs"
        rng = random.Random(workflow_task.episode_id)
        return rng.choice(self.FAULTS) if rng.random() < 1 / 8 else None

    async def execute(self, workflow_task, model_tuner):
        fault = self.fault_of(workflow_task)
        if fault in ("raises", "exits", "hangs", "floods"):
            tell("begin", workflow_task)
            tell("end", workflow_task)
        if fault == "raises":
            raise ConnectionError("no such move")
        if fault == "exits":
            raise SystemExit(3)
        if fault == "hangs":
            await asyncio.sleep(3600)
        if fault == "floods":
            flood = "all work and no play " * 50_000
            await model_tuner.chat([{"role": "user", "content": flood}])
        if fault == "leaves a file open":
            os.open(os.devnull, os.O_RDONLY)
        if fault == "leaves a process":
            from ajet.sandbox.pool import default_pool

            program = "import os, time\nif os.fork() == 0:\n    time.sleep(600)"
            await default_pool().run(program, timeout=10)
        return await super().execute(workflow_task, model_tuner)
'''
SERVED = '''

class Served(Plain):
    """Its tool is that of an MCP server, which dies, hangs or answers as the question says."""

    async def tool(self, question):
        from ajet.tools.mcp_session import McpAddress, McpConnectionLost, open_session

        script = str(LOG.with_name("tool_server.py"))
        session = await open_session(McpAddress("python", (script,)))
        try:
            async with asyncio.timeout(5):
                answer = await session.call("count", {"text": question})
            return str(answer.content[0].text)
        except (McpConnectionLost, TimeoutError) as error:
            return f"No answer: {type(error).__name__}"
        finally:
            await session.close()
'''
LAKE = '''
from ajet import register
from ajet.agents.step_env_agent import StepEnvAgent


@register("telling_lake")
class TellingLake(StepEnvAgent):
    """Plays, and tells when an episode begins and ends."""

    async def execute(self, workflow_task, model_tuner):
        tell("begin", workflow_task)
        while HOLD.exists() and int(HOLD.read_text()) == workflow_task.step:
            await asyncio.sleep(0.01)
        output = await super().execute(workflow_task, model_tuner)
        tell("end", workflow_task)
        return output
'''
TOOL_SERVER = """
import json, os, sys, time

schema = {"type": "object", "properties": {"text": {"type": "string"}}}
for line in sys.stdin:
    asked = json.loads(line)
    method, answer = asked["method"], None
    if method == "initialize":
        version = asked["params"]["protocolVersion"]
        about = {"name": "count", "version": "1"}
        answer = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": about}
    elif method == "tools/list":
        answer = {"tools": [{"name": "count", "inputSchema": schema}]}
    elif method == "tools/call":
        text = asked["params"]["arguments"]["text"]
        number = sum(text.encode())
        if number % 7 == 0:
            os._exit(1)
        if number % 61 == 0:
            time.sleep(600)
        answer = {"content": [{"type": "text", "text": str(len(text))}]}
    if answer is not None:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
"""
