"""A sandbox for Python programs that a model wrote.

In: a program's text and a timeout. Out: its exit code and what it printed.
Ignored: who asked, and what the answer is used for.
"""
