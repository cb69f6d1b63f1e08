"""Plays two_sides.yaml as a program of its own, over HTTP; it imports the standard library alone.

    ajet serve --conf tutorial/example_many_adapters/two_sides.yaml   prints address and key
    AJET_SERVE_API_KEY=… python tutorial/example_many_adapters/client.py http://127.0.0.1:PORT

Each side has a key of its own, so the server knows whose adapter samples, and at the end a reward
of its own.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

SIDES = ("high", "low")


def post(url: str, key: str, body: dict) -> dict:
    """Returns the answer to a request; raises `HTTPError` for one that is refused."""
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def first_digit(text: str) -> float:
    """Returns the first digit of a reply; one without any is in the middle."""
    return next((float(letter) for letter in text if letter in "0123456789"), 4.5)


def play(server: str, key: str) -> dict:
    """Plays one episode, and returns what the server says of it."""
    episode = post(f"{server}/ajet/v1/episodes", key, {"agents": SIDES, "wait_s": 60})
    messages = [{"role": "user", "content": episode["task"]["main_query"]}]
    digits = {}
    for side in SIDES:
        body = {"model": episode["model"], "messages": messages}
        reply = post(f"{episode['base_url']}/chat/completions", episode["api_keys"][side], body)
        digits[side] = first_digit(reply["choices"][0]["message"]["content"] or "")
    gain = (digits["high"] + digits["low"]) / 9 - 1
    result = {
        "reward": gain,
        "is_success": digits["high"] >= 7 and digits["low"] <= 2,
        "agent_rewards": {"high": gain, "low": -gain},
    }
    return post(f"{server}/ajet/v1/episodes/{episode['id']}/end", key, result)


def play_until_over(server: str, key: str) -> int:
    """Plays episodes until the run is over, and returns their number."""
    number = 0
    while True:
        try:
            play(server, key)
            number += 1
        except urllib.error.HTTPError as error:
            if error.code == 410:
                return number
            if error.code != 503:  # nothing is offered now: ask again
                raise


if __name__ == "__main__":
    address, server_key = sys.argv[1], os.environ["AJET_SERVE_API_KEY"]
    with ThreadPoolExecutor(8) as pool:
        played = [pool.submit(play_until_over, address, server_key) for _ in range(8)]
        print(sum(each.result() for each in played), "episodes")
