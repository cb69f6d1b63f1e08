"""How far each client's feedback agrees with what others say of the same conversations. The reasons
and the limits are in docs/adr/0061-learning-server.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

HONEST = 0.3
"""The largest share of comparisons in which an honest client contradicts the others: its own errors
and taste, and the others' lies."""
LEAD = 2
"""By how many clients one side must outnumber the other. With a lead of one, a liar and an honest
client who share a conversation with nobody else would each count against the other alike."""


@dataclass(frozen=True, slots=True)
class Voice:
    client: str
    conversation: str  # the same for all that have the same messages up to the last reply
    approves: bool  # the reward is above 0


@dataclass(slots=True)
class Agreement:
    """Counts how often a client agreed with the others, and how often it contradicted them."""

    client: str
    agreed: int = 0
    contradicted: int = 0

    @property
    def lead(self) -> int:
        """Returns how many more comparisons contradict the client than agree with it."""
        return self.contradicted - self.agreed

    @property
    def chance(self) -> float:
        """Returns a bound on the probability that an honest client ever gets this far.

        Of an honest client at most `HONEST` of the comparisons are contradictions, so `lead` is a
        random walk that drifts down. The probability that it ever reaches n is at most
        (HONEST / (1 - HONEST)) ** n, as in Wald's sequential test, so the bound holds however
        often it is looked at."""
        return (HONEST / (1 - HONEST)) ** max(0, self.lead)

    def as_json(self) -> dict[str, Any]:
        """Returns the entry of the server's status; `chance` has two significant digits."""
        counts = {"agreed": self.agreed, "contradicted": self.contradicted}
        return {"client": self.client, **counts, "chance": float(f"{self.chance:.2g}")}


def agreements(voices: Iterable[Voice], verdicts: Mapping[str, bool]) -> list[Agreement]:
    """Returns the clients that could be compared, those with the most contradictions first.
    `verdicts` are the judge's, by conversation; `voices` come in the order of their feedback.

    Each client is compared once per conversation, as soon as there is something to compare with:
    the judge's verdict, if a held-out episode had this conversation; else the side that outnumbers
    the opposite one by `LEAD` clients or more."""
    by_client: dict[str, Agreement] = {}
    approvals: dict[str, dict[str, bool]] = {}  # conversation -> client -> whether it approves
    compared: set[tuple[str, str]] = set()
    for voice in voices:
        voters = approvals.setdefault(voice.conversation, {})
        if voice.client in voters:
            continue
        voters[voice.client] = voice.approves
        verdict = verdicts.get(voice.conversation)
        total = sum(1 if approves else -1 for approves in voters.values())
        # A new voice may decide conversations for clients that came before it: compare them all.
        for client, approves in voters.items():
            balance = total - (1 if approves else -1)  # without the client itself
            comparison = (client, voice.conversation)
            if comparison in compared or (verdict is None and abs(balance) < LEAD):
                continue
            compared.add(comparison)
            agreement = by_client.setdefault(client, Agreement(client))
            if approves == (balance > 0 if verdict is None else verdict):
                agreement.agreed += 1
            else:
                agreement.contradicted += 1
    return sorted(by_client.values(), key=lambda agreement: (-agreement.lead, agreement.client))
