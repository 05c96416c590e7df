"""An OpenAI-compatible server of our own, on this machine, and a verifier that starts at once."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text, finish="stop", tokens=3):
    choice = {"message": {"content": text}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


def echo(body):
    return 200, completion(body["messages"][0]["content"] + f" {body['seed']}")


def no_waits(patch):
    """The client asks again at once."""
    patch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.0)


def same_box(response, answer):
    """1 where the last box holds the answer itself: no second of imports, as math-verify needs."""
    boxes = re.findall(r"\\boxed\{(.*?)\}", response)
    return float(bool(boxes) and boxes[-1] == answer)


class Server(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """A client that has gone away is nothing to print of."""


@contextmanager
def server(answer=echo, models=None):
    """A server that answers a request's body with answer(body) -> status, object[, headers].

    Bytes, or an iterator of them, are sent as they are. models() -> the same, for GET.
    """
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send(*models())

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, self.headers.get("Authorization"), body))
            self.send(*answer(body))

        def send(self, status, reply, *headers):
            if reply is None or isinstance(reply, (dict, list, str)):
                reply = json.dumps(reply).encode()
            self.send_response(status)
            if isinstance(reply, bytes):
                self.send_header("Content-Length", str(len(reply)))
                reply = [reply]
            for name, value in dict(*headers).items():
                self.send_header(name, value)
            self.end_headers()
            for part in reply:
                self.wfile.write(part)
                self.wfile.flush()

        def log_message(self, *_):
            pass

    http = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=[0.01])  # seconds until it ends
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}/v1", seen
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
