"""Images in prompts: read from messages, stored once by content, and named by token ids.

message part --forms--> Image --store--> key --image_ids--> token ids of the prompt
"""
