"""How far each client's feedback agrees with what others say of the same conversations.

    a client approves        the reward of its feedback is above 0
    the same conversation    all messages up to the last reply are the same (sessions.py)
    others say               the config's judge, where a held-out episode went like that; else the
                             clients who outnumber those who say the opposite by two

A client is compared once for each conversation, as soon as there is something to compare with. One
who gives honest feedback contradicts the others in `HONEST` of its comparisons at most. Then
`contradicted - agreed` is a random walk that goes down, and the chance that it ever rises to n is
(HONEST / (1 - HONEST)) ** n at most: Wald's sequential test against one who contradicts them in
1 - HONEST, which may be looked at after each round. A client whose chance is no larger than a bound
is left out.

Pure functions of the log. Not covered: feedback without a client's name, conversations that nobody
else had, and clients of whom most lie (docs/adr/0061-learning-server.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HONEST = 0.3
"""The largest share of comparisons in which an honest client contradicts the others: errors and
taste of its own, and the others' lies."""
LEAD = 2
"""By how many clients one side must outnumber the other to say something. With one, a liar and an
honest client whom nobody else has met would each speak against the other alike."""


@dataclass(frozen=True, slots=True)
class Voice:
    """Holds what a client said of a conversation."""

    client: str
    conversation: str
    approves: bool


@dataclass(slots=True)
class Agreement:
    """Counts the comparisons of a client with the others."""

    client: str
    agreed: int = 0
    contradicted: int = 0

    @property
    def lead(self) -> int:
        """By how many comparisons the client contradicted the others more often than it agreed."""
        return self.contradicted - self.agreed

    @property
    def chance(self) -> float:
        """At most how probably an honest client ever gets here."""
        return (HONEST / (1 - HONEST)) ** max(0, self.lead)

    def as_json(self) -> dict[str, Any]:
        """Returns it as the server's status has it."""
        counts = {"agreed": self.agreed, "contradicted": self.contradicted}
        return {"client": self.client, **counts, "chance": float(f"{self.chance:.2g}")}


def agreements(voices: Iterable[Voice], verdicts: Mapping[str, bool]) -> list[Agreement]:
    """Returns the clients that could be compared, the ones that contradict the others most first.
    `verdicts` are the judge's, by conversation; `voices` come in the order of their feedback."""
    found: dict[str, Agreement] = {}
    said: dict[str, dict[str, bool]] = {}  # conversation -> client -> whether it approves
    compared: set[tuple[str, str]] = set()
    for voice in voices:
        of_clients = said.setdefault(voice.conversation, {})
        if voice.client in of_clients:
            continue
        of_clients[voice.client] = voice.approves
        verdict = verdicts.get(voice.conversation)
        total = sum(1 if each else -1 for each in of_clients.values())
        for client, approves in of_clients.items():
            others = total - (1 if approves else -1)
            place = (client, voice.conversation)
            if place in compared or (verdict is None and abs(others) < LEAD):
                continue
            compared.add(place)
            own = found.setdefault(client, Agreement(client))
            if approves == (others > 0 if verdict is None else verdict):
                own.agreed += 1
            else:
                own.contradicted += 1
    return sorted(found.values(), key=lambda each: (-each.lead, each.client))
