import logging
import os
from typing import Any
from uuid import uuid4

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.utils.profiler import simple_timer
from verl.utils.rollout_trace import rollout_trace_op

logger = logging.getLogger(__file__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))


class MathAgentLoop(AgentLoopBase):
    """Asks twice: what stands between the two replies is not trained."""

    def __init__(self, *args, retry: str = "", **kwargs):
        super().__init__(*args, **kwargs)
        self.retry = retry
        self.prompt_length = self.rollout_config.prompt_length
        self.response_length = self.rollout_config.response_length

    @rollout_trace_op
    async def run(self, sampling_params: dict[str, Any], **kwargs) -> AgentLoopOutput:
        messages = list(kwargs["raw_prompt"])
        multi_modal_data = await self.process_vision_info(messages)
        images = multi_modal_data.get("images")
        metrics = {}
        request_id = uuid4().hex
        prompt_ids = await self.apply_chat_template(messages, images=images)
        response_ids, response_mask = [], []
        for turn in range(2):
            with simple_timer("generate_sequences", metrics):
                output = await self.server_manager.generate(
                    request_id=request_id,
                    prompt_ids=prompt_ids + response_ids,
                    sampling_params=sampling_params,
                    image_data=images,
                )
            response_ids += output.token_ids
            response_mask += [1] * len(output.token_ids)
            if turn == 0:
                again = [{"role": "user", "content": self.retry}]
                ids = await self.apply_chat_template(again, remove_system_prompt=True)
                response_ids += ids
                response_mask += [0] * len(ids)
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids[: self.response_length],
            response_mask=response_mask[: self.response_length],
            multi_modal_data={},
            num_turns=4,
            metrics=metrics,
        )
