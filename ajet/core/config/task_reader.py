"""Defines `ajet.task_reader`, where tasks come from, and `ajet.data`, how many a step takes and how
long a conversation may be. Of the readers, only the section of `type` is read."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from ajet.core.config.section import Address, ImportPath, Section
from ajet.core.config.tracing import DeduplicationParams, Tracing
from ajet.core.text.error_text import did_you_mean
from ajet.core.user_code.plugins import plugins


def _reader_type(value: str) -> str:
    readers = plugins("ajet.readers")
    if value in readers or "->" in value:
        return value
    hint = did_you_mean(value, readers, "or your own class as file.py->Class")
    if value in ("csv", "json", "jsonl", "parquet", "arrow"):
        hint = "a file of any format is dataset"
    raise ValueError(f"no task reader {value!r}; there are {', '.join(readers)}; {hint}")


class Dataset(Section):
    """Configures tasks from files, folders, or data sets of the Hugging Face Hub."""

    training: str | None = Field(
        default=None,
        description="A file (.jsonl, .json, .csv, .parquet, .arrow), a folder of them or of "
        "save_to_disk, or a Hub repository (name or name/config).",
    )
    validation: str | None = Field(
        default=None,
        description="The same for the validation tasks; null takes them from training.",
    )
    training_split: str = Field(
        default="train", description="The split of the training tasks; a file has none."
    )
    validation_split: str | None = Field(
        default="test", description="The split of the validation tasks; null has none."
    )


class JsonlSplit(Section):
    """Names one file."""

    file_path: str | None = Field(default=None, description="The file, one JSON object a line.")


class JsonlDatasetFile(Section):
    """Configures tasks from two files: AgentJet's name for `dataset`."""

    training: JsonlSplit = Field(
        default=JsonlSplit(), description="The training tasks: a file as in dataset.training."
    )
    validation: JsonlSplit = Field(
        default=JsonlSplit(),
        description="The validation tasks, in the same forms; may be left out.",
    )


class HuggingfaceDatRepo(Section):
    """Configures tasks from the splits of one place: AgentJet's name for `dataset`."""

    dataset_path: str | None = Field(
        default=None,
        description="A Hub repository (name or name/config), a folder, or a data file.",
    )
    training_split: str = Field(default="train", description="The split of the training tasks.")
    validation_split: str | None = Field(
        default="test", description="The split of the validation tasks; null has none."
    )


class RandomDummy(Section):
    """Configures made-up tasks, to try a workflow without data."""

    num_training: int = Field(default=32, ge=1, description="Training tasks.")
    num_validation: int = Field(default=8, ge=0, description="Validation tasks.")


class EnvService(Section):
    """Configures tasks of an environment served over HTTP."""

    env_type: str | None = Field(default=None, description="The environment's name.")
    env_url: Address | None = Field(
        default=None, description="The service's address, as http://127.0.0.1:8080."
    )
    env_action_preference: Literal["code", "text", "box"] = Field(
        default="code",
        description="Passed to the environment, which may accept actions in several forms.",
    )
    training_split: str = Field(default="train", description="The split of the training tasks.")
    validation_split: str | None = Field(
        default="dev", description="The split of the validation tasks; null has none."
    )


class DocumentReader(Section):
    """Configures the documents from which tasks are made."""

    document_path: str | list[str] | None = Field(
        default=None,
        description="Files or folders: .txt, .md, .rst, and .pdf and .docx with the extra "
        "`documents`.",
    )
    languages: list[str] = Field(
        default=[], description="Languages of the tasks; empty leaves it to the model."
    )
    chunk_size: int = Field(default=5120, ge=1, description="Characters of a piece at most.")
    split_by: Literal["sentence", "paragraph", "character"] = Field(
        default="sentence", description="Where a document is cut."
    )
    cache_enabled: bool = Field(default=True, description="Keep the pieces between runs.")


class QueryReader(Section):
    """Configures the reader of the generator's example questions."""

    type: Literal["jsonl_dataset_file", "huggingface_dat_repo", "random_dummy"] | None = Field(
        default=None,
        description="Reader of the example questions, whose validation tasks are the run's; null "
        "has none.",
    )
    jsonl_dataset_file: JsonlDatasetFile = Field(
        default=JsonlDatasetFile(), description="JSON lines."
    )
    huggingface_dat_repo: HuggingfaceDatRepo = Field(
        default=HuggingfaceDatRepo(), description="A repo."
    )


class DeduplicationFilter(Section):
    """Configures the filter for generated tasks that are alike."""

    enabled: bool = Field(default=True, description="Whether to drop them.")
    params: DeduplicationParams = Field(
        default=DeduplicationParams(), description="How similarity is measured."
    )


class DataGeneration(Section):
    """Configures tasks made from documents by a language model."""

    document_reader: DocumentReader = Field(default=DocumentReader(), description="The documents.")
    query_reader: QueryReader = Field(default=QueryReader(), description="Example questions.")
    task_num: int = Field(default=10, ge=1, description="Tasks to make.")
    llm_model: str = Field(default="qwen-long", description="The model that makes them.")
    base_url: Address | None = Field(
        default=None,
        description="Its OpenAI-compatible address; null takes OPENAI_BASE_URL, then OpenAI's.",
    )
    llm_response_length: int = Field(default=8192, ge=1, description="Tokens of its replies.")
    num_workers: int = Field(default=32, ge=1, description="Requests at a time.")
    sampling_params: dict[str, Any] = Field(
        default={}, description="Further fields of its requests, as temperature."
    )
    cache_dir: str = Field(
        default="generated_tasks", description="Folder of the tasks, pieces and replies."
    )
    deduplication_filter: DeduplicationFilter = Field(
        default=DeduplicationFilter(), description="Drops tasks that are alike."
    )


class TaskReaderConfig(Section):
    """Configures the reader, with a section for each type."""

    type: Annotated[str, AfterValidator(_reader_type)] = Field(
        default="huggingface_dat_repo",
        description="dataset (jsonl_dataset_file and huggingface_dat_repo are AgentJet's names for "
        "it), random_dummy, env_service, environment, data_generation, tracing, or your own "
        "BaseTaskReader as file.py->Class.",
    )
    query_field: str | None = Field(
        default=None,
        description="The row's field with the question; null takes the first of question, "
        "main_query, query, prompt, problem.",
    )
    dataset: Dataset = Field(
        default=Dataset(), description="Files, folders or a Hub repository, in any format."
    )
    jsonl_dataset_file: JsonlDatasetFile = Field(
        default=JsonlDatasetFile(), description="Two files."
    )
    huggingface_dat_repo: HuggingfaceDatRepo = Field(
        default=HuggingfaceDatRepo(), description="A Hub repository or local files."
    )
    random_dummy: RandomDummy = Field(default=RandomDummy(), description="Made-up tasks.")
    env_service: EnvService = Field(default=EnvService(), description="An environment over HTTP.")
    data_generation: DataGeneration = Field(
        default=DataGeneration(), description="Generated tasks."
    )
    tracing: Tracing = Field(default=Tracing(), description="Recorded conversations.")

    @model_validator(mode="after")
    def _type_matches_data(self) -> Self:
        # The default type with another type's data set is the usual mistake: `type` was forgotten.
        if self.type != "huggingface_dat_repo" or self.huggingface_dat_repo.dataset_path:
            return self
        data_keys = {
            "jsonl_dataset_file.training.file_path": self.jsonl_dataset_file.training.file_path,
            "dataset.training": self.dataset.training,
        }
        for key, place in data_keys.items():
            if place:
                raise ValueError(
                    "type is huggingface_dat_repo, whose dataset_path is missing; to read "
                    f"{key} ({place}), write type: {key.partition('.')[0]}"
                )
        return self


class CurriculumConfig(Section):
    """Configures how data.sampler takes tasks by their results."""

    results_path: str | None = Field(
        default=None,
        description="The JSON of `ajet eval --split training --out FILE`: the results that the "
        "sampler starts from; null starts from none.",
    )
    rest: int = Field(
        default=8,
        ge=1,
        description="Batches in which a task without signal rests the first time; then 2, 4, 8 and "
        "at most 16 times as many.",
    )
    quotas: dict[str, float] = Field(
        default={},
        description="Shares of the batch by tag, which add up to 1; empty: tags do not count.",
    )
    tag_field: str = Field(default="tag", description="The field of a row that has its tag.")

    @field_validator("quotas")
    @classmethod
    def _add_up_to_one(cls, quotas: dict[str, float]) -> dict[str, float]:
        if quotas and (min(quotas.values()) <= 0 or abs(sum(quotas.values()) - 1) > 1e-6):
            raise ValueError("shares above 0 are expected, which add up to 1")
        return quotas


class DataConfig(Section):
    """Configures the batch size in tasks, and the limits of an episode in tokens."""

    train_batch_size: int = Field(
        default=32, ge=1, description="Tasks of one step; each is run num_repeat times."
    )
    sampler: Literal["uniform", "adaptive"] | ImportPath = Field(
        default="uniform",
        description="Which tasks are next: uniform takes each once an epoch, adaptive those whose "
        "groups have signal; or file.py->function of your own.",
    )
    curriculum: CurriculumConfig = Field(
        default=CurriculumConfig(), description="Settings of a sampler that sees results."
    )
    shuffle: bool = Field(
        default=True,
        description="Draw the tasks of every epoch in a new seeded order; false keeps theirs.",
    )
    val_max_tasks: Annotated[int, Field(ge=1)] | Literal["auto"] | None = Field(
        default="auto",
        description="Validate on so many held-out tasks: auto draws 100 by the seed, N takes the "
        "first N, null all.",
    )
    max_prompt_length: int = Field(
        default=3000,
        ge=1,
        description="Tokens of an episode's first prompt; a longer one is truncated.",
    )
    max_response_length: int = Field(
        default=15000,
        ge=1,
        description="Tokens of an episode after its first prompt, tool results included.",
    )

    @field_validator("sampler", mode="before")
    @classmethod
    def _null_is_uniform(cls, sampler: Any) -> Any:
        return "uniform" if sampler is None else sampler  # as configs of earlier runs have it
