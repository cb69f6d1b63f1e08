"""Generates tasks from documents and example questions with a language model."""
