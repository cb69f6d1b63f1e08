"""`verifiers_agent` lets an environment of the package verifiers play the episode, with its code.

The reward is the package's, and no judge of ajet is asked. Roles that are not trained call the
model of their `client` in the config, as in vf-eval.
"""

from __future__ import annotations

from typing import Any

from ajet.core.config import AjetConfig
from ajet.core.errors import EnvironmentFault
from ajet.core.task.workflow_task import WorkflowOutput, WorkflowTask
from ajet.core.user_code.activity import in_call
from ajet.core.workflow.tuner import ModelTuner
from ajet.core.workflow.workflow import Workflow
from ajet.environments.verifiers.process import VerifiersSection, shared_process
from ajet.environments.verifiers.reader import KEY, environment_of


class VerifiersAgent(Workflow):
    name = "verifiers_agent"
    reads = ()

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        config: AjetConfig = model_tuner.config
        section = VerifiersSection.from_config(config)
        metadata = workflow_task.task.metadata
        base_url, api_key = model_tuner.as_oai_baseurl_apikey()
        env = environment_of(section, str(metadata.get("split")))
        with in_call("verifiers"):
            process = await shared_process(section, env)
            result: dict[str, Any] = await process.ask(
                "run", task=metadata[KEY], base_url=base_url, api_key=api_key, sampling={}
            )
        # An episode that reached a limit ends with an error there, but its reward counts.
        is_cut = model_tuner.get_context_tracker().context_overflow
        if result["reward"] is None or not (result["is_ok"] or is_cut):
            raise EnvironmentFault(f"verifiers: {result['error'] or 'no agent finished its run'}")
        reward = float(result["reward"])
        return WorkflowOutput(
            reward=reward,
            is_success=reward >= 1,
            metadata={"final_answer": result["answer"], "ended_by": result["ended_by"]},
            log_metrics={f"verifiers/{name}": value for name, value in result["metrics"].items()},
        )

    @classmethod
    def check_config(cls, config: AjetConfig) -> None:
        VerifiersSection.from_config(config)
