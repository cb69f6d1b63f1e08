"""Adapts recipes to a diet: a node of a graph proposes, another one checks, and both may repeat."""

from typing import TypedDict

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

llm = ChatOpenAI(model="gpt-4o-mini", temperature=0.7)
FORBIDDEN = {
    "vegan": ("milk", "egg", "butter", "honey", "cheese", "chicken"),
    "nut-free": ("almond", "walnut", "peanut", "pesto"),
    "gluten-free": ("flour", "bread", "pasta", "couscous"),
}
MOST_DRAFTS = 3


class Kitchen(TypedDict):
    request: str
    diet: str
    draft: str
    drafts: int
    complaint: str


def propose(state: Kitchen) -> dict:
    rules = f"Rewrite the list of ingredients for a {state['diet']} guest. Answer with the list."
    wish = state["request"]
    if state.get("complaint"):
        wish += f"\nYour last list was refused: {state['complaint']}"
    reply = llm.invoke([SystemMessage(rules), HumanMessage(wish)])
    return {"draft": str(reply.content), "drafts": state.get("drafts", 0) + 1}


def taste(state: Kitchen) -> dict:
    found = [word for word in FORBIDDEN[state["diet"]] if word in state["draft"].lower()]
    return {"complaint": f"it has {', '.join(found)}" if found else ""}


def is_done(state: Kitchen) -> str:
    return END if not state["complaint"] or state["drafts"] >= MOST_DRAFTS else "propose"


def kitchen():
    graph = StateGraph(Kitchen)
    graph.add_node("propose", propose)
    graph.add_node("taste", taste)
    graph.add_edge(START, "propose")
    graph.add_edge("propose", "taste")
    graph.add_conditional_edges("taste", is_done)
    return graph.compile()


def adapt(request: str, diet: str = "vegan") -> str:
    return kitchen().invoke({"request": request, "diet": diet})["draft"]


if __name__ == "__main__":
    print(adapt("pancakes: flour, milk, egg, butter"))
