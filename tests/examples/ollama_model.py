#!/usr/bin/env python3
"""A model for Dawnfleet: asks an Ollama server, whose address is the first argument."""

import json
import sys
from urllib.request import Request, urlopen


def spoken(message):
    if message["role"] == "tool":
        return [{"role": "tool", "content": result["content"]} for result in message["results"]]
    calls = [{"function": {key: call[key] for key in ("name", "arguments")}} for call in message.get("calls", [])]
    return [{"role": message["role"], "content": message["text"], "tool_calls": calls}]


def reply(asked):
    system = [{"role": "system", "content": asked["system"]}]
    messages = system + [part for message in asked["messages"] for part in spoken(message)]
    functions = [
        {"name": t["name"], "description": t["description"], "parameters": t["schema"]} for t in asked["tools"]
    ]
    tools = [{"type": "function", "function": function} for function in functions]
    body = json.dumps({"model": asked["model"], "messages": messages, "tools": tools, "stream": False}).encode()
    with urlopen(Request(f"{sys.argv[1]}/api/chat", body), timeout=asked["timeout_s"]) as answer:
        said = json.load(answer)
    calls = [
        {key: call["function"][key] for key in ("name", "arguments")}
        for call in said["message"].get("tool_calls", [])
    ]
    usage = {"input_tokens": said["prompt_eval_count"], "output_tokens": said["eval_count"]}
    return {"text": said["message"]["content"], "calls": calls, "usage": usage, "cost_usd": 0}


for line in sys.stdin:
    try:
        print(json.dumps(reply(json.loads(line))), flush=True)
    except OSError as error:
        print(json.dumps({"error": {"message": str(error), "reason": "connection", "retryable": True}}), flush=True)
