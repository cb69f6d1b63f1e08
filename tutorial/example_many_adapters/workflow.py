"""Two games in which adapters must learn opposite things from the same words.

    TugOfWar       "high" says a digit, "low" answers; high earns (high - low) / 9, low earns less
    Preferences    a user's question; "ada" likes large digits, "bo" small ones

Nothing in a prompt says who speaks or who asks: one adapter for all calls cannot serve both.
"""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask

NO_DIGIT = 4.5


def first_digit(text: str) -> float:
    """Returns the first digit of a reply; one without any is in the middle."""
    return next((float(letter) for letter in text if letter in "0123456789"), NO_DIGIT)


class TugOfWar(Workflow):
    """The sum of both digits is what high gains and low loses."""

    name = "tug_of_war"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        messages = [{"role": "user", "content": workflow_task.task.main_query}]
        digits: dict[str, float] = {}
        for side in ("high", "low"):
            reply = await model_tuner.chat(messages, agent_name=side)
            digits[side] = first_digit(str(reply["content"]))
        gain = (digits["high"] + digits["low"]) / 9 - 1
        return WorkflowOutput(
            reward=gain,
            is_success=digits["high"] >= 7 and digits["low"] <= 2,
            agent_rewards={"high": gain, "low": -gain},
            log_metrics=digits,
        )


class Preferences(Workflow):
    """The user of the task says how good an answer is, and says it to nobody before."""

    name = "preferences"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        task = workflow_task.task
        reply = await model_tuner.chat([{"role": "user", "content": task.main_query}])
        user, digit = task.metadata["user"], first_digit(str(reply["content"]))
        liking = digit / 9 if user == "ada" else 1 - digit / 9
        return WorkflowOutput(
            reward=liking, is_success=liking >= 7 / 9, log_metrics={f"digit_{user}": digit}
        )
