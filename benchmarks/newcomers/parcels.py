"""Answers customers of a parcel service: looks parcels up and says what to do."""

import json
import os
import sys

from openai import OpenAI

client = OpenAI(api_key=os.environ.get("OPENAI_API_KEY", "none"))
MODEL = "gpt-4o-mini"
PARCELS = {
    "P-1001": {"status": "in transit", "days": 2, "insured": True},
    "P-1002": {"status": "lost", "days": 21, "insured": True},
    "P-1003": {"status": "lost", "days": 30, "insured": False},
    "P-1004": {"status": "delivered", "days": 1, "insured": False},
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks a parcel up by its number.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "string"}},
                "required": ["number"],
            },
        },
    }
]
RULES = (
    "You help customers of a parcel service. Look the parcel up first. Then end with one word: "
    "WAIT if it is in transit, REFUND if it is lost and insured, SORRY if it is lost and not "
    "insured, DONE if it is delivered."
)


def look_up(number):
    return json.dumps(PARCELS.get(number, {"status": "unknown"}))


def help_customer(complaint):
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": complaint}]
    for _ in range(4):
        completion = client.chat.completions.create(
            model=MODEL, messages=messages, tools=TOOLS, temperature=0.2
        )
        reply = completion.choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            return reply.content
        for call in reply.tool_calls:
            arguments = json.loads(call.function.arguments)
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": look_up(arguments["number"])}
            )
    return "SORRY"


if __name__ == "__main__":
    print(help_customer(" ".join(sys.argv[1:]) or "Where is my parcel P-1002?"))
