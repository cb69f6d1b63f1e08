"""The agents that a config can name. They are ordinary workflows, as users write them.

agent_name: single_turn_agent      one question, one reply
agent_name: tool_agent             tools from a file, optionally a simulated user
agent_name: react_agent            LangChain's `create_agent`; derive from it to give it tools
agent_name: traj_env_agent         plays an environment, the whole conversation in its prompt
agent_name: step_env_agent         plays an environment, each prompt shows one step
"""
