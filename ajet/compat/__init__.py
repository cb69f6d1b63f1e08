"""The names that files written for other systems import, one module a system.

In: a user's file whose import line names `ajet.compat.…` in place of the other system. Out: ajet's
own classes under the names that the file uses. Ignores their configs (`ajet.convert`).
"""
