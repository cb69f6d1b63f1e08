"""The tools of `tool_agent`: from a file that lists them to each episode's callable tools.

toolbox.py               the file -> Toolbox; an episode opens it: schemas, answers, rewards
function.py              a Python function: its schema from signature and docstring
tool.py, class_tool.py   a class with state: create, execute, calc_reward, release
schema.py                its schema, a dict with attributes
mcp_tools.py             an MCP server over stdio or HTTP (mcp_session.py: one connection;
                         mcp_stdio.py: one server's process)
call.py, truncate.py     one call and its deadline; an answer within a limit of tokens
"""
