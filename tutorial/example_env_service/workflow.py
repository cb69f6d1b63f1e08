"""An agent that plays whatever the environment service serves: one message, one action."""

from ajet import ModelTuner, Workflow, WorkflowOutput, WorkflowTask


class PlayWorkflow(Workflow):
    """Says what the model says, and shows the model what the environment answers."""

    name = "play_workflow"

    async def execute(self, workflow_task: WorkflowTask, model_tuner: ModelTuner) -> WorkflowOutput:
        env = workflow_task.gym_env
        assert env is not None, "ajet.task_reader.type is env_service"
        messages = list(workflow_task.task.init_messages)
        max_steps = model_tuner.config.ajet.rollout.multi_turn.max_steps
        num_steps, is_over = 0, False
        while not is_over and num_steps < max_steps:  # what is no action ends no game
            reply = await model_tuner.chat(messages)
            seen, _, is_over, _ = await env.step(reply)
            messages += [reply, {"role": "user", "content": seen}]
            num_steps += 1
        return WorkflowOutput(log_metrics={"num_steps": num_steps})  # the judge asks env.evaluate()
