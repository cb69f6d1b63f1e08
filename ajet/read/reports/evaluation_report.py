"""The report of `ajet eval`: the figures of one evaluation as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ajet.core.inference.endpoint import SamplingParams
from ajet.core.record.evaluation import Evaluation, IntervalEstimate, evaluate
from ajet.core.record.step_warnings import CallForms
from ajet.core.text.plain_value import plain_text
from ajet.core.trajectory.trajectory import Group, Trajectory
from ajet.read.reports.report import Report

MAX_TEXT = 2000
"""The longest query, answer or tag that is stored, in characters."""


@dataclass(frozen=True)
class EvaluationReport(Report):
    """The figures of one evaluation. `subject` names what was evaluated; `tasks` has each task's
    episodes, for paired comparisons; `first_prompt` has the messages and tools of the model's first
    call. `call_forms` counts replies whose tool calls the run's parser does not read."""

    subject: str
    split: str
    figures: Evaluation
    sampling: SamplingParams
    seed: int
    seconds: float
    tasks: dict[str, dict[str, Any]]
    call_forms: CallForms
    first_prompt: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, groups: Sequence[Group], **about: Any) -> "EvaluationReport":
        tasks = {
            group.trajectories[0].workflow_task.task_id: {
                "success": [bool(t.is_success) and t.is_valid for t in group.trajectories],
                "reward": [t.reward for t in group.trajectories],
                "status": [str(t.outcome) for t in group.trajectories],
                **_texts(group),
            }
            for group in groups
        }
        trajectories = [t for group in groups for t in group.trajectories]
        first = next((turn for t in trajectories for turn in t.turns), None)
        prompt = {} if first is None else {"messages": first.messages, "tools": first.tools}
        return cls(
            figures=evaluate(groups),
            tasks=tasks,
            call_forms=CallForms.of(trajectories),
            first_prompt=prompt,
            **about,
        )

    def as_plain(self) -> dict[str, Any]:
        drawn = asdict(self.sampling)
        return {
            "subject": self.subject,
            "split": self.split,
            **self.figures.as_json(),
            "sampling": {name: drawn[name] for name in ("temperature", "top_p", "top_k")},
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
            "calls_in_other_form": asdict(self.call_forms),
            "tasks": self.tasks,
        }

    @property
    def wins(self) -> dict[str, list[bool]]:
        return {name: task["success"] for name, task in self.tasks.items()}

    def shown(self) -> RenderableType:
        figures = self.figures
        k = figures.num_repeat
        title = f"{self.subject}, {self.split}: {figures.num_tasks} tasks x {k} episodes"
        table = Table()
        table.add_column()
        table.add_column("value", justify="right")
        table.add_column("95 % interval")
        table.add_row("success", *_cells(figures.success))
        for tag, estimate in figures.success_by_tag.items():
            table.add_row(f"  {tag}", *_cells(estimate))
        table.add_row(f"mean@{k} (reward)", *_cells(figures.mean_at_k))
        for size, estimate in figures.pass_at_k.items():
            table.add_row(f"pass@{size}", *_cells(estimate))
        for size, estimate in figures.pass_hat_k.items():
            if size > 1:  # pass^1 is the success
                table.add_row(f"pass^{size}", *_cells(estimate))
        table.add_section()
        ended = ", ".join(f"{count} {status}" for status, count in figures.statuses.items())
        table.add_row("episodes", str(figures.num_tasks * k), ended)
        if self.sampling.temperature == 0:
            decoding = "greedy"
        else:
            decoding = f"temperature {self.sampling.temperature:g}"
            if self.sampling.top_p < 1:
                decoding += f", top-p {self.sampling.top_p:g}"
            if self.sampling.top_k > 0:
                decoding += f", top-k {self.sampling.top_k}"
        table.add_row("seconds", f"{self.seconds:.1f}", decoding)
        return Lines(Text(title, style="bold"), table)


def _texts(group: Group) -> dict[str, Any]:
    """Returns what a person reads of a task: its query, tag and answers."""
    task = group.trajectories[0].workflow_task.task
    tag = task.metadata.get("tag")
    return {
        "query": plain_text(task.main_query, MAX_TEXT),
        **({} if tag is None else {"tag": plain_text(tag, MAX_TEXT)}),
        "answers": [plain_text(_answer(t), MAX_TEXT) for t in group.trajectories],
    }


def _answer(trajectory: Trajectory) -> Any:
    """Returns the workflow's `final_answer`, else the last reply."""
    metadata = {} if trajectory.output is None else trajectory.output.metadata
    if metadata.get("final_answer"):
        return metadata["final_answer"]
    return trajectory.turns[-1].reply.get("content") or "" if trajectory.turns else ""


def _cells(estimate: IntervalEstimate) -> tuple[str, str]:
    if abs(estimate.high - estimate.low) == float("inf"):
        return f"{estimate.value:.3f}", "unknown: one task"
    if estimate.low == estimate.high:
        return f"{estimate.value:.3f}", "unknown: all tasks alike"
    return f"{estimate.value:.3f}", f"{estimate.low:.3f} to {estimate.high:.3f}"
