"""A server that learns, in the test's process: the real parts, and a learner that runs at once."""

import io
import json
from contextlib import contextmanager, redirect_stdout

import httpx

from ajet.core.config import load_config
from ajet.core.record.run_folder import RunFolder
from ajet.serve.online.learner import run_round
from ajet.serve.online.log import SessionLog
from ajet.serve.online.serving import OnlineServer

KEY = "the server's key"
YAML = """
ajet:
  project_name: served
  experiment_name: served
  model: {path: "embedded:math"}
  task_reader:
    type: huggingface_dat_repo
    huggingface_dat_repo:
      {dataset_path: "embedded:arithmetic", training_split: train, validation_split: test}
  data: {max_prompt_length: 256, max_response_length: 256, val_max_tasks: 4}
  rollout: {temperature: 1.0, max_response_length_in_one_turn: 6, max_model_len: 512}
  task_judge: {judge_protocol: math}
  serve:
    port: auto
    learn:
      sessions_per_round: 4
      promote: difference
      min_difference: -1.0
      shadow_sessions: 2
      niceness: 1 # on a busy machine a nicer learner takes minutes
  trainer_common:
    val_pass_n: 1
    torch_threads: 1
    algorithm: {adv_estimator: reinforce_plus_plus}
    optim: {lr: 1.0e-3}
"""


class LearnerAtOnce:
    """Stands in for the process of a round: it has ended with this status when it is made."""

    def __init__(self, status=0):
        self.status = status

    def poll(self):
        return self.status

    def terminate(self):
        raise AssertionError("it has ended")

    wait = terminate


LIKES = """
from ajet import Workflow, WorkflowOutput


class Likes(Workflow):
    async def execute(self, workflow_task, model_tuner):
        task = workflow_task.task
        reply = await model_tuner.chat([{"role": "user", "content": task.main_query}])
        said = [int(letter) for letter in str(reply["content"]) if letter.isdigit()]
        liking = (said[0] if said else 4.5) / 9
        liking = liking if task.metadata["user"] == "ada" else 1 - liking
        return WorkflowOutput(reward=liking, is_success=liking > 0.6)
"""
"""A workflow whose user ada wants a large digit, and bo a small one."""
ASKED = ("Say a digit.", "A number, please.", "What is your number?", "Give me one digit.")
SEVERAL = """
ajet:
  project_name: served
  experiment_name: served
  model: {path: "embedded:math"}
  task_reader:
    type: jsonl_dataset_file
    jsonl_dataset_file:
      {training: {file_path: tasks.jsonl}, validation: {file_path: tasks.jsonl}}
  data: {max_prompt_length: 256, max_response_length: 256}
  rollout:
    user_workflow: likes.py->Likes
    temperature: 1.0
    max_response_length_in_one_turn: 6
    max_model_len: 512
    val_kwargs: {temperature: 1.0, do_sample: true}
  task_judge: {judge_protocol: null}
  serve:
    port: auto
    learn:
      {sessions_per_round: 4, promote: difference, min_difference: -1.0, shadow_sessions: 2,
       niceness: 1}
  trainer_common:
    val_pass_n: 2
    torch_threads: 1
    algorithm: {adv_estimator: reinforce_plus_plus}
    lora: {rank: 8, adapters: [ada, bo], adapter_by: metadata.user}
    optim: {lr: 1.0e-2}
"""


def write_several(folder):
    """Writes what a served model with an adapter for ada and one for bo needs."""
    rows = [{"query": query, "user": user} for user in ("ada", "bo") for query in ASKED]
    (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "likes.py").write_text(LIKES)
    (folder / "served.yaml").write_text(SEVERAL)


def several_in(folder, *overrides):
    write_several(folder)
    return load_config(folder / "served.yaml", overrides, exp_dir=folder)


def config_in(folder, *overrides):
    (folder / "served.yaml").write_text(YAML)
    return load_config(folder / "served.yaml", overrides, exp_dir=folder)


class Served:
    """A server with its client. `advance` lets it begin a round, which runs at once, and end it."""

    def __init__(self, config, folder, start):
        self.server = OnlineServer(config, folder, KEY, start)
        self.log = self.server.log
        self.url = self.server.gateway.listen().removesuffix("/v1")
        self.http = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {KEY}"}, timeout=60
        )
        self.said = []

    def chat(self, *messages, headers=None, **body):
        """Returns the response to these texts, whose users and replies take turns."""
        roles = ("user", "assistant")
        sent = [
            {"role": roles[number % 2], "content": text} for number, text in enumerate(messages)
        ]
        body = {"model": "m", "messages": sent} | body
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

    def feedback(self, **body):
        return self.http.post("/ajet/v1/feedback", json=body)

    def rated(self, rewards, client=""):
        """Has a session for each reward, with feedback."""
        for number, reward in enumerate(rewards):
            reply = self.chat(f"What is {number}+{len(rewards)}?", user=client)
            told = self.feedback(response=reply.json()["id"], reward=reward, client=client)
            assert told.json()["status"] == "recorded", told.text

    def round(self):
        """Begins a round and takes its decision; returns it."""
        self.server.advance(self.said.append)
        self.server.advance(self.said.append)
        return self.log.rounds()[-1]

    def close(self):
        self.http.close()
        self.server.close()


@contextmanager
def served(folder, *overrides, start=None, config_in=config_in):
    config = config_in(folder, *overrides)
    with RunFolder.open(config.run_folder) as run_folder:
        here = Served(config, run_folder, start or learn_at_once(config))
        try:
            yield here
        finally:
            here.close()


def learn_at_once(config):
    def start(folder, due):
        log = SessionLog(folder.path)
        with redirect_stdout(io.StringIO()):
            run_round(config, folder, log, due)
        log.close()
        return LearnerAtOnce()

    return start
