"""A language server in a few lines, which knows how a file ends up: what `bench --typing` is tested on.

`MODE` is how it behaves: "good", or one of the faults that it shows.
"""

PROGRAM = r"""
import json, sys, time
MODE, WHOLE = %r, %r
text, uri, version, accepted = "", "", 0, 0

def send(message):
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    sys.stdout.buffer.write(b"Content-Length: %%d\r\n\r\n" %% len(body) + body)
    sys.stdout.buffer.flush()

def offset(place):
    lines = text.split("\n")
    return sum(len(line) + 1 for line in lines[:place["line"]]) + place["character"]

def items(place):
    at = offset(place)
    before, after = text[:at], text[at:]
    if not (WHOLE.startswith(before) and WHOLE.endswith(after)):
        return []
    line = before.rpartition("\n")[2]
    start = {"line": place["line"], "character": 0}
    rest = WHOLE[at:len(WHOLE) - len(after)]
    if MODE == "wrong":
        rest = "nonsense"
    if MODE == "flicker":
        rest = rest[:1] + "~" + str(version)
    if MODE == "stale":
        line = "#" + line
    return [{"insertText": line + rest, "range": {"start": start, "end": place},
             "command": {"title": "", "command": "localdflash.accept", "arguments": [str(version)]}}]

while True:
    length = 0
    while (header := sys.stdin.buffer.readline().strip()):
        if header.lower().startswith(b"content-length:"):
            length = int(header.split(b":")[1])
    if not length:
        break
    message = json.loads(sys.stdin.buffer.read(length))
    method, params = message.get("method"), message.get("params")
    if method == "initialize":
        send({"id": 99, "method": "client/registerCapability", "params": {}})
        result = {"capabilities": {"inlineCompletionProvider": {}, "positionEncoding": "utf-16"}}
        send({"id": message["id"], "result": {"capabilities": {}} if MODE == "unable" else result})
    elif method == "textDocument/didOpen":
        text, uri, version = (params["textDocument"][name] for name in ("text", "uri", "version"))
    elif method == "textDocument/didChange":
        version = params["textDocument"]["version"]
        for change in params["contentChanges"]:
            start, end = offset(change["range"]["start"]), offset(change["range"]["end"])
            text = text[:start] + change["text"] + text[end:]
    elif method == "textDocument/inlineCompletion":
        if MODE == "dies" and version > 2:
            sys.exit("out of luck")
        if MODE == "babbles":
            print("hello\r\n\r\n", flush=True)
            time.sleep(60)
        send({"id": message["id"], "result": {"items": items(params["position"])}})
        late = {"textDocument": {"uri": uri, "version": version - 1}, "position": params["position"]}
        send({"method": "localdflash/didUpdateInlineCompletion", "params": {**late, "items": [{"insertText": "old"}]}})
    elif method == "workspace/executeCommand":
        accepted += 1
        send({"id": message["id"], "result": None})
    elif method == "localdflash/status":
        send({"id": message["id"], "result": {"tau": float(accepted), "tokensPerSecond": 7.0}})
    elif method == "shutdown":
        send({"id": message["id"], "result": None})
    elif method == "exit":
        break
"""


def program(mode: str, whole: str) -> str:
    """The source of a server that knows the file `whole`."""
    return PROGRAM % (mode, whole)
