"""Plays the web pages of MiniWoB++ in a real Chromium.

In: a task, a seed and actions as text. Out: what the page shows as text, and the task's own reward.
"""
