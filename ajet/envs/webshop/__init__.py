"""A shop: search, look, choose options, buy what an instruction asks for. In: a goal and a
catalogue. Out: pages as text, and the paper's reward (arXiv 2207.01206) for what is bought."""

from ajet.envs.webshop.shop import WebShop

__all__ = ["WebShop"]
