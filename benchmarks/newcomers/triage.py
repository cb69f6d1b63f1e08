"""A clinic's front desk on OpenAI's Agents SDK: one agent hands over to the one that decides."""

import asyncio

from agents import Agent, Runner, function_tool

VITALS = {
    "ward-1": {"pulse": 128, "temperature": 39.6, "pain": 8},
    "ward-2": {"pulse": 72, "temperature": 36.8, "pain": 2},
    "ward-3": {"pulse": 96, "temperature": 38.1, "pain": 5},
}


@function_tool
def vitals(place: str) -> str:
    """Returns pulse, temperature and pain (0 to 10) of the patient at a place."""
    values = VITALS.get(place)
    return "nobody is there" if values is None else str(values)


@function_tool
def free_rooms() -> int:
    """Returns how many rooms are free."""
    return 2


nurse = Agent(
    name="nurse",
    model="gpt-4o-mini",
    instructions=(
        "Measure the patient's vitals. Then answer with one word: RED if two values are bad "
        "(pulse above 120, temperature above 39, pain above 7), YELLOW if a value is raised "
        "(pulse above 90, temperature above 38, pain above 4), else GREEN."
    ),
    tools=[vitals, free_rooms],
)
desk = Agent(
    name="desk",
    model="gpt-4o-mini",
    instructions="Greet nobody. Hand every patient over to the nurse.",
    handoffs=[nurse],
)


async def triage(request: str) -> str:
    result = await Runner.run(desk, request, max_turns=6)
    return str(result.final_output).strip()


async def main() -> None:
    for place in VITALS:
        print(place, await triage(f"The patient at {place} does not feel well."))


if __name__ == "__main__":
    asyncio.run(main())
