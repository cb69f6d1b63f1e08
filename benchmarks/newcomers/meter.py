"""Reads an energy meter's log over plain HTTP, without an SDK, and says which hour was worst."""

import json
import os
import sys
import urllib.request

LOGS = {
    "north": [3, 4, 2, 9, 4, 3],
    "south": [1, 1, 7, 2, 2, 1],
    "west": [5, 6, 5, 5, 12, 6],
}
PROMPT = (
    "You look for the hour in which an energy meter counted most. Ask for a log by writing "
    "LOG and the meter's name, such as LOG east. Answer with ANSWER and the hour, from 0."
)


def complete(messages: list[dict], base_url: str, api_key: str) -> str:
    request = urllib.request.Request(
        f"{base_url.rstrip('/')}/chat/completions",
        data=json.dumps({"model": "local", "messages": messages, "max_tokens": 64}).encode(),
        headers={"Content-Type": "application/json", "Authorization": f"Bearer {api_key}"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        body = json.load(response)
    return body["choices"][0]["message"]["content"] or ""


def worst_hour(
    question: str,
    base_url: str = os.environ.get("METER_LLM", "http://localhost:8000/v1"),
    api_key: str = "none",
) -> str:
    messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": question}]
    for _ in range(4):
        text = complete(messages, base_url, api_key)
        messages.append({"role": "assistant", "content": text})
        words = text.split()
        if "ANSWER" in words:
            return " ".join(words[words.index("ANSWER") + 1 :])
        if "LOG" in words and words.index("LOG") + 1 < len(words):
            log = LOGS.get(words[words.index("LOG") + 1].strip("."), [])
            messages.append({"role": "user", "content": f"The log: {log}"})
        else:
            messages.append({"role": "user", "content": "Write LOG or ANSWER."})
    return ""


if __name__ == "__main__":
    print(worst_hour(sys.argv[1]))
