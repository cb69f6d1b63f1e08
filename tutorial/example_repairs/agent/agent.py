"""A small coding agent that knows nothing of ajet: standard library, one file, one model.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python3 agent.py "clamp.py has a bug. …"
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

MAX_TURNS = 6
SYSTEM = "You repair Python files. Use write_file with the whole new text; then say: done."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "description": "Replaces the text of a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
                "required": ["path", "text"],
            },
        },
    }
]


def ask(messages: list) -> dict:
    """Returns the model's next message."""
    body = {"model": "ajet", "messages": messages, "tools": TOOLS}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def run_call(call: dict) -> str:
    """Runs a call of write_file, and returns what the model is told."""
    try:
        arguments = json.loads(call["function"]["arguments"])
        Path(arguments["path"]).write_text(arguments["text"])
    except (ValueError, KeyError, OSError) as error:
        return f"error: {error}"
    return "written"


def main() -> None:
    shown = "".join(f"\n{path}:\n{path.read_text()}" for path in sorted(Path().glob("*.py")))
    messages = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": sys.argv[1] + "\n" + shown},
    ]
    for _turn in range(MAX_TURNS):
        message = ask(messages)
        messages.append(message)
        calls = message.get("tool_calls")
        if not calls:
            print(message["content"])
            return
        for call in calls:
            answer = {"role": "tool", "tool_call_id": call["id"], "content": run_call(call)}
            messages.append(answer)
    sys.exit("no end after so many turns")


if __name__ == "__main__":
    main()
