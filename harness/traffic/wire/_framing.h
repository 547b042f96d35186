/* Where an HTTP/1.1 answer ends (RFC 9112), followed as its bytes come: what `ending.py` does for the pure transport. */

#ifndef KVMARK_FRAMING_H
#define KVMARK_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MARK_BYTES 12  /* of "\ndata: [DONE]", without its last: kept of a body in case the mark is split over reads */

typedef enum { HEAD, LENGTH, TO_CLOSE, CHUNK_SIZE, CHUNK_LINE, CHUNK_DATA, CHUNK_END, TRAILER, COMPLETE } Place;

typedef struct {
    Place place;
    bool keeps;    /* the connection can serve another request, as far as the server says */
    bool surplus;  /* something came after the end */
    bool marked;   /* `data: [DONE]` was there, at the start of a line */
    uint64_t left; /* of the body or the chunk */
    size_t head;   /* in the raw bytes: where it starts */
    size_t seen;   /* up to where its end was looked for */
    size_t line;   /* characters of the line about a chunk, or of the trailers */
    enum { BLANKS, START, NAME, TEXT, RETURN, EMPTY } in_line;  /* RETURN, EMPTY: a line feed must follow */
    char tail[MARK_BYTES];
    size_t tail_bytes;
} Framing;

void framing_init(Framing *f);

/* Go on with the last `size` of the raw bytes. A head must lie in `raw` as a whole, so none may be taken away while
 * `place` is HEAD. Returns what is wrong, or NULL. */
const char *framing_feed(Framing *f, const char *raw, size_t raw_bytes, size_t size, size_t head_bytes);

#endif
