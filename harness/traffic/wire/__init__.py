"""One HTTP/1.1 request and its streamed answer, undecoded: what was sent when, and every read's bytes and arrival."""
