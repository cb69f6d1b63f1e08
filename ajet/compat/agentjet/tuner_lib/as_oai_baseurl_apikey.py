"""Provides AgentJet's `ajet.tuner_lib.as_oai_baseurl_apikey`."""

from ajet.core.workflow.gateway.gateway import Address as OpenaiBaseUrlAndApiKey

__all__ = ["OpenaiBaseUrlAndApiKey"]
