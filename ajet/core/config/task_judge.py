"""Defines `ajet.task_judge`: who rewards an episode."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from ajet.core.config.section import Address, Section
from ajet.core.config.task_reader import JsonlSplit


def _without_request_fields(sampling: dict[str, Any]) -> dict[str, Any]:
    for name in ("messages", "model", "n", "stream"):
        if name in sampling:
            raise ValueError(f"{name} is not a sampling parameter: the judge sets it")
    return sampling


class JudgeClientConfig(Section):
    """Configures how a judge reaches its model. The key comes from AJET_JUDGE_API_KEY."""

    base_url: Address | None = Field(
        default=None,
        description="OpenAI-compatible address; null takes OPENAI_BASE_URL, then OpenAI's.",
    )
    cache_path: str | None = Field(
        default="auto",
        description="Replies by request; auto is judge_replies.sqlite in the run folder, if there "
        "is one; null keeps none.",
    )
    max_parallel: int = Field(default=8, ge=1, description="Requests at a time.")
    requests_per_minute: int | None = Field(
        default=None, ge=1, description="Requests in any 60 seconds, retries counted; null: any."
    )
    timeout_s: float = Field(
        default=60.0, gt=0, description="Longest time of one attempt, with its whole answer."
    )
    max_retries: int = Field(
        default=3, ge=0, description="Retries after 429, 5xx and broken connections."
    )


class Grading(Section):
    """Configures a judge that calls a model: the fields it reads and the scores it gives."""

    query_field: str = Field(default="main_query", description="The task's or the row's question.")
    answer_field: str = Field(
        default="final_answer", description="The answer in WorkflowOutput.metadata."
    )
    reference_field: str | None = Field(
        default="answer", description="The row's reference answer, shown where the row has one."
    )
    min_score: float = Field(default=0, description="Lowest score; a score is the reward.")
    max_score: float = Field(default=1, description="Highest score.")
    success_threshold: float | None = Field(
        default=None, description="Success from this score on; null is the middle of the scale."
    )
    sampling: Annotated[dict[str, Any], AfterValidator(_without_request_fields)] = Field(
        default={"temperature": 0, "max_tokens": 1024},
        description="Fields of each request to the model; null leaves one out.",
    )
    max_corrections: int = Field(
        default=2, ge=0, description="How often a malformed reply is asked for again."
    )

    @model_validator(mode="after")
    def _scale_is_one(self) -> Self:
        if self.min_score >= self.max_score:
            raise ValueError(
                f"min_score {self.min_score:g} is not below max_score {self.max_score:g}"
            )
        threshold = self.success_threshold
        if threshold is not None and not self.min_score <= threshold <= self.max_score:
            raise ValueError(f"success_threshold {threshold:g} is outside the scale")
        return self


class LlmJudgeConfig(Grading):
    """Configures a model that is asked for a score directly."""

    prompt: str | None = Field(
        default=None,
        description="A prompt of your own with {query}, {answer} ({answers} for llm_listwise), "
        "{reference}, {min_score} and {max_score}.",
    )


class Criterion(Section):
    """Configures one line of a rubric; a plain text is a criterion of weight 1."""

    text: str = Field(min_length=1, description="What a good answer does.")
    weight: float = Field(default=1.0, gt=0, description="Its share in the score.")

    @model_validator(mode="before")
    @classmethod
    def _plain_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


class GradedExamples(Section):
    """Names rows with a question and its graded answers."""

    training: JsonlSplit = Field(
        default=JsonlSplit(),
        description="Rows with answer and score, or with candidates of answer and rank.",
    )


class RubricsAutoGrader(Grading):
    """Configures a model that grades by rubrics, which it writes itself where there are none."""

    grader_mode: Literal["pointwise", "listwise"] = Field(
        default="pointwise",
        description="pointwise scores each answer by each criterion; listwise scores a group's "
        "answers together.",
    )
    rubrics: list[Criterion] = Field(
        default=[],
        description="Criteria of your own, texts or {text, weight}; empty: the model makes them.",
    )
    language: str = Field(default="en", description="Language of made rubrics: en, zh, or a name.")
    query_specific_generate_number: int = Field(
        default=1, ge=1, description="Criteria made for each question or example."
    )
    enable_categorization: bool = Field(
        default=False,
        description="One rubric for all questions, merged from examples; false: one a question.",
    )
    categories_number: int = Field(default=5, ge=1, description="Most criteria of a merged rubric.")
    num_examples: int = Field(
        default=16, ge=1, description="Examples, drawn by the seed, behind a merged rubric."
    )
    grader_name: str = Field(
        default="rubrics_grader", description="The grader's name in auto_grader.json and metrics."
    )
    custom_evaluation_prompt: str | None = Field(
        default=None,
        description="A prompt of your own with {rubrics}, {query}, {answer} ({answers} in "
        "listwise mode), {reference}, {min_score} and {max_score}.",
    )
    dataset_file: GradedExamples = Field(
        default=GradedExamples(),
        description="Graded examples; where given, their criteria hold for every question.",
    )


class HiddenTestsConfig(Section):
    """Configures the command that judges the folder which a command-line agent leaves."""

    command: list[str] = Field(
        default=[],
        description="The command; with {test} in it once for each hidden file named test_*, and "
        "the reward is the share that exits with 0. A row's test_command comes first.",
    )
    timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds until one command counts as failed."
    )


class TaskJudgeConfig(Section):
    """Configures the judge: your own class, a built-in one, or none (the workflow's reward)."""

    judge_type: Literal["customized_protocol", "rubrics_auto_grader"] = Field(
        default="customized_protocol",
        description="customized_protocol takes judge_protocol; rubrics_auto_grader its section.",
    )
    judge_protocol: str | None = Field(
        default=None,
        description="The judge: module->Class, file.py->Class, exact_match, math, env_service, "
        "hidden_tests, llm or llm_listwise; null takes the reward that the workflow returns.",
    )
    success_threshold: float = Field(
        default=0.5,
        description="An episode succeeds from this reward on, where neither workflow nor judge "
        "says is_success.",
    )
    model_name: str | None = Field(
        default=None,
        description="The model that a judge asks: llm, llm_listwise, rubrics_auto_grader (null: "
        "qwen-max), and your own judge as self.client.",
    )
    alien_llm_response_length: int = Field(
        default=512, ge=1, description="A reply length for your own judge to read."
    )
    client: JudgeClientConfig = Field(
        default=JudgeClientConfig(), description="How a judging model is reached."
    )
    hidden_tests: HiddenTestsConfig = Field(
        default=HiddenTestsConfig(),
        description="Settings that count with judge_protocol hidden_tests.",
    )
    llm: LlmJudgeConfig = Field(
        default=LlmJudgeConfig(),
        description="Settings that count with judge_protocol llm and llm_listwise.",
    )
    rubrics_auto_grader: RubricsAutoGrader = Field(
        default=RubricsAutoGrader(),
        description="Settings that count with judge_type rubrics_auto_grader.",
    )

    @property
    def alien_llm_model(self) -> str | None:
        """Returns `model_name`, for judges that were written for AgentJet."""
        return self.model_name
