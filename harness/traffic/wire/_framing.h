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
    size_t block;  /* in the raw bytes: where the head or the trailers start */
    size_t seen;   /* up to where they were searched for their end */
    size_t line;   /* characters of the line about a chunk */
    enum { BLANKS, TEXT, RETURN } in_line;
    char tail[MARK_BYTES];
    size_t tail_bytes;
} Framing;

void framing_init(Framing *f);

/* Go on with the last `size` of the raw bytes. Those of a head and of trailers must lie in `raw` as a whole, from where
 * they start: `framing_needs_raw` says whether what is there may be taken away. Returns what is wrong, or NULL. */
const char *framing_feed(Framing *f, const char *raw, size_t raw_bytes, size_t size, size_t head_bytes);

static inline bool framing_needs_raw(const Framing *f)
{
    return f->place == HEAD || f->place == TRAILER;
}

#endif
