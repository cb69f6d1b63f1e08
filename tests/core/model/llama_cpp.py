"""Run in a process of its own with llama.cpp's Python package: prompts in, greedy replies out.

python llama_cpp.py MODEL.gguf < prompts.json
    [{"prompt_tokens": 12, "text": "…", "first": [[994, -0.11], [336, -2.26], …]}, …]

Its cache and its attention are in float32; by default they are in float16.
"""

import json
import sys

import xllamacpp


def main() -> None:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = sys.argv[1]
    parameters.n_ctx = 512
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.warmup = False
    server = xllamacpp.Server(parameters)
    replies = []
    for prompt in json.load(sys.stdin):
        asked = {"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 5}
        reply = server.handle_completions(asked)
        (choice,) = reply["choices"]
        first = choice["logprobs"]["content"][0]["top_logprobs"]
        replies.append(
            {
                "prompt_tokens": reply["usage"]["prompt_tokens"],
                "text": choice["text"],
                "first": [[each["id"], each["logprob"]] for each in first],
            }
        )
    print(json.dumps(replies))


if __name__ == "__main__":
    main()
