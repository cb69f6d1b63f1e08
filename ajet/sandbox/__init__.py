"""A sandbox for Python programs that a model wrote.

It takes a program's text and a timeout, and returns the program's exit code and its output.
"""
