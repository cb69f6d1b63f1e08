"""Converts the files of training and held-out rows to settings of ajet's readers.

    data/train.parquet, data/test.parquet     huggingface_dat_repo: data, splits train and test
    a/train.jsonl, b/test.jsonl               jsonl_dataset_file, which may lie anywhere
    a/train.parquet, b/test.parquet           the first alone, and the user is told

Not covered: several files of one split, unless they lie in one folder as train-0, train-1, ….
"""

from pathlib import Path
from typing import Any

from ajet.convert.draft import Draft

READER = "ajet.task_reader"
REPO = f"{READER}.huggingface_dat_repo"
LINES = f"{READER}.jsonl_dataset_file"


def take_files(draft: Draft, train_key: str, held_out_key: str) -> None:
    """Converts the paths of the tasks; what ajet's readers cannot express is left out."""
    train, held_out = _single(draft.take(train_key)), _single(draft.take(held_out_key))
    if train is None:
        for key in (train_key, held_out_key):
            if draft.has_key(key):
                draft.leave_out(key, "one file a split, or a folder of files", algorithm=True)
        draft.to_do("say where the tasks are: ajet.task_reader")
    elif Path(train).suffix == ".jsonl":
        draft.set(f"{READER}.type", "jsonl_dataset_file", train_key)
        draft.set(f"{LINES}.training.file_path", train, train_key)
        if held_out:
            draft.set(f"{LINES}.validation.file_path", held_out, held_out_key)
    else:
        draft.set(f"{READER}.type", "huggingface_dat_repo", train_key)
        _repository(draft, train_key, train, held_out_key, held_out)


def _repository(
    draft: Draft, train_key: str, train: str, held_out_key: str, held_out: str | None
) -> None:
    if held_out is not None and Path(held_out).parent != Path(train).parent:
        draft.set(f"{REPO}.dataset_path", train, train_key)
        draft.set(f"{REPO}.validation_split", None, held_out_key)
        draft.to_do(
            f"put {train} and {held_out} into one folder, and name it at {REPO}.dataset_path: "
            "there is no validation until then"
        )
        return
    draft.set(f"{REPO}.dataset_path", str(Path(train).parent), train_key)
    draft.set(f"{REPO}.training_split", _split(train), train_key)
    split = None if held_out is None else _split(held_out)
    draft.set(f"{REPO}.validation_split", split, held_out_key)


def _single(files: Any) -> str | None:
    if isinstance(files, list) and len(files) == 1:
        files = files[0]
    return files if isinstance(files, str) and files else None


def _split(file: str) -> str:
    """Returns the split that our reader sees in a file name: ``train`` for
    ``train-00000-of-00002.parquet``."""
    return Path(file).name.split(".")[0].split("-")[0]
