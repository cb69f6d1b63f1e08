"""A receiver of OTLP on loopback, which keeps the spans that it was sent."""

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Receiver:
    """`refuses` makes it answer with 400, which a sender does not try again by itself."""

    def __init__(self):
        self.requests, self.spans, self.refuses = [], [], False

    def take(self, path, body):
        self.requests.append(path)
        if self.refuses:
            return 400
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                self.spans += scope.spans
        return 200

    @property
    def episodes(self):
        return [attributes(s)["gen_ai.conversation.id"] for s in self.spans if not s.parent_span_id]


@contextmanager
def receiving(port=0):
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            self.send_response(receiver.take(self.path, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    receiver.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def attributes(span):
    """The attributes of a span, by name."""
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        if kind == "array_value":
            value = [v.string_value for v in value.values]
        found[each.key] = value
    return found
