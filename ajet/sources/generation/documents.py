"""Cuts documents into chunks that fit into a prompt. Only white space is lost between chunks. PDF
needs pypdf, and .docx needs python-docx (the extra `documents`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ajet.core.config.task_reader import DocumentReader
from ajet.core.errors import DataError, DataNotFound
from ajet.core.errors.codes import Code
from ajet.core.record.atomic_file import write_text_atomically
from ajet.core.task.jsonl import read_text, resolve
from ajet.core.text.error_text import extra_advice

TEXT = (".txt", ".md", ".markdown", ".rst")
PDF, DOCX = ".pdf", ".docx"
READABLE = (*TEXT, PDF, DOCX)

_UNIT_ENDS = {
    "sentence": re.compile(r"(?<=[.!?])(?=\s)|(?<=[。！？])"),
    "paragraph": re.compile(r"(?<=\n)(?=\s*\n)"),
}


@dataclass(frozen=True, slots=True)
class DocumentChunk:
    """A part of a document. `number` is its index in the document."""

    document: str
    number: int
    text: str


def read_chunks(section: DocumentReader, base_dirs: list[Path], cache: Path) -> list[DocumentChunk]:
    """Returns the chunks of all documents in the order of the config; a folder's files by name."""
    configured = section.document_path
    paths = [configured] if isinstance(configured, str) else list(configured or ())
    files = [file for path in paths for file in _files(resolve(path, base_dirs))]
    chunks = [chunk for file in files for chunk in _chunks_of(file, section, cache)]
    if paths and not chunks:
        raise DataError(
            f"{', '.join(paths)}: there is no text in these documents", code=Code.TASKS_NOT_MADE
        )
    return chunks


def split_text(text: str, size: int, split_by: str) -> list[str]:
    """Returns the text in pieces of at most `size` characters. Sentences or paragraphs (`split_by`)
    stay together unless they are longer."""
    units = _UNIT_ENDS[split_by].split(text) if split_by in _UNIT_ENDS else [text]
    chunks, current = [], ""
    for unit in units:
        for start in range(0, len(unit), size):
            piece = unit[start : start + size]
            if current and len(current) + len(piece) > size:
                chunks.append(current)
                current = ""
            current += piece
    return [chunk.strip() for chunk in (*chunks, current) if chunk.strip()]


def _files(path: Path) -> Sequence[Path]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in READABLE)
        if not files:
            raise DataError(
                f"{path}: no document here; one of *{', *'.join(READABLE)} is needed",
                code=Code.DATA_FORMAT,
            )
        return files
    if not path.is_file():
        raise DataNotFound(f"{path}: no such document or folder")
    if path.suffix.lower() not in READABLE:
        raise DataError(
            f"{path}: this kind is not read; give one of {', '.join(READABLE)}",
            code=Code.DATA_FORMAT,
        )
    return [path]


def _chunks_of(file: Path, section: DocumentReader, cache: Path) -> list[DocumentChunk]:
    if not section.cache_enabled:
        return _chunk_file(file, section)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read: {error.strerror}", code=Code.DATA_UNREADABLE
        ) from error
    how = f"{file.name}\n{section.chunk_size}\n{section.split_by}\n".encode()
    cached = cache / f"pieces-{hashlib.sha256(how + content).hexdigest()[:16]}.json"
    if cached.is_file():
        return [DocumentChunk(**chunk) for chunk in json.loads(cached.read_text(encoding="utf-8"))]
    chunks = _chunk_file(file, section)
    cached.parent.mkdir(parents=True, exist_ok=True)
    listed = json.dumps([asdict(chunk) for chunk in chunks], ensure_ascii=False)
    write_text_atomically(cached, listed)
    return chunks


def _chunk_file(file: Path, section: DocumentReader) -> list[DocumentChunk]:
    texts = split_text(_text_of(file), section.chunk_size, section.split_by)
    return [DocumentChunk(file.name, number, text) for number, text in enumerate(texts)]


def _text_of(file: Path) -> str:
    suffix = file.suffix.lower()
    if suffix == PDF:
        return _pdf_text(file)
    return _docx_text(file) if suffix == DOCX else read_text(file)


def _pdf_text(file: Path) -> str:
    try:
        from pypdf import PdfReader  # pyright: ignore[reportMissingImports]
        from pypdf.errors import PyPdfError  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise DataError(
            f"{file}: PDF needs pypdf: {extra_advice('pypdf')}", code=Code.PACKAGE_MISSING
        ) from error
    try:
        return "\n\n".join(page.extract_text() for page in PdfReader(file).pages)
    except (PyPdfError, OSError) as error:
        raise DataError(
            f"{file}: not a readable PDF: {error}", code=Code.DATA_UNREADABLE
        ) from error


def _docx_text(file: Path) -> str:
    try:
        from docx import Document  # pyright: ignore[reportMissingImports]
        from docx.opc.exceptions import PackageNotFoundError  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise DataError(
            f"{file}: .docx needs python-docx: {extra_advice('docx')}", code=Code.PACKAGE_MISSING
        ) from error
    try:
        return "\n\n".join(paragraph.text for paragraph in Document(str(file)).paragraphs)
    except (PackageNotFoundError, OSError, KeyError) as error:
        raise DataError(
            f"{file}: not a readable .docx file: {error}", code=Code.DATA_UNREADABLE
        ) from error
