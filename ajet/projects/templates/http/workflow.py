"""Hands the trained model to the agent, as an address and a key that end with the episode."""

from agent import solve

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class Agent(Workflow):
    """Runs `solve` in this process; a program in another language would be started here."""

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        base_url, api_key = model_tuner.as_oai_baseurl_apikey()
        answer = await solve(workflow_task.task.main_query, base_url, api_key)
        return WorkflowOutput(metadata={"final_answer": answer})
