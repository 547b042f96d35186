#ifndef _GNU_SOURCE
#define _GNU_SOURCE  /* memmem */
#endif
#include "_framing.h"

#include <string.h>
#include <strings.h>

#define MOST_DIGITS 16  /* of a chunk's size: what 64 bits hold */

void framing_init(Framing *f)
{
    *f = (Framing){.place = HEAD, .tail = "\n", .tail_bytes = 1};  /* a body's start is a line's start */
}

/* ---- the mark ---- */

static bool holds_mark(const char *data, size_t size)
{
    const char *at = data, *end = data + size;
    while ((at = memmem(at, (size_t)(end - at), "[DONE]", 6))) {
        /* "data:" and at most one space must stand before it, at the start of a line. */
        const char *before = at > data && at[-1] == ' ' ? at - 1 : at;
        if (before - data >= 6 && memcmp(before - 5, "data:", 5) == 0 && (before[-6] == '\n' || before[-6] == '\r'))
            return true;
        at++;
    }
    return false;
}

static void see_body(Framing *f, const char *data, size_t size)
{
    if (f->marked)
        return;
    char seam[2 * MARK_BYTES];
    size_t more = size < MARK_BYTES ? size : MARK_BYTES, all = f->tail_bytes + more;
    memcpy(seam, f->tail, f->tail_bytes);
    memcpy(seam + f->tail_bytes, data, more);
    f->marked = holds_mark(data, size) || holds_mark(seam, all);
    if (size >= MARK_BYTES) {
        memcpy(f->tail, data + size - MARK_BYTES, MARK_BYTES);
        f->tail_bytes = MARK_BYTES;
    } else {
        f->tail_bytes = all < MARK_BYTES ? all : MARK_BYTES;
        memcpy(f->tail, seam + all - f->tail_bytes, f->tail_bytes);
    }
}

/* ---- the head ---- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_text(char c)
{
    return c == '\t' || ((unsigned char)c >= ' ' && c != 127);
}

static bool is_token(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+.^_`|~-", c));
}

static bool equals(const char *start, const char *end, const char *word)
{
    size_t size = strlen(word);
    return (size_t)(end - start) == size && strncasecmp(start, word, size) == 0;
}

/* The next of the values between commas, without blanks around it; false after the last. */
static bool next_value(const char **at, const char *end, const char **start, const char **stop)
{
    if (*at > end)
        return false;
    const char *comma = memchr(*at, ',', (size_t)(end - *at));
    *start = *at;
    *stop = comma ? comma : end;
    *at = *stop + 1;
    while (*start < *stop && strchr(" \t\r\n", **start))
        (*start)++;
    while (*start < *stop && strchr(" \t\r\n", (*stop)[-1]))
        (*stop)--;
    return true;
}

typedef struct {
    int status;
    bool keeps, chunked, sized;
    bool missized;  /* of no interest where the body comes in chunks */
    uint64_t length;
} Head;

static const char *read_value(Head *head, const char *name, const char *colon, const char *end)
{
    const char *at = colon + 1, *start, *stop;
    bool coding = equals(name, colon, "transfer-encoding"), length = equals(name, colon, "content-length");
    if (!coding && !length && !equals(name, colon, "connection"))
        return NULL;
    while (next_value(&at, end, &start, &stop)) {
        if (coding) {
            if (!equals(start, stop, "chunked") || head->chunked)
                return "transfer-encoding: only chunked is allowed";
            head->chunked = true;
        } else if (length) {
            uint64_t value = 0;
            const char *digit = start;
            while (digit < stop && *digit >= '0' && *digit <= '9' && digit - start < 18)
                value = 10 * value + (uint64_t)(*digit++ - '0');
            if (digit == start || digit < stop || (head->sized && value != head->length))
                head->missized = true;
            head->sized = true;
            head->length = value;
        } else if (equals(start, stop, "close")) {
            head->keeps = false;
        }
    }
    return NULL;
}

/* One field, folded lines included, from `start` to its line's end. */
static const char *read_field(Head *head, const char *start, const char *stop)
{
    const char *at = start;
    while (at < stop && is_token(*at))
        at++;
    if (at == start || at == stop || *at != ':')
        return "headers: a line without a name and a colon";
    for (const char *c = at; c < stop; c++)
        if (!is_text(*c) && *c != '\n' && !(*c == '\r' && c[1] == '\n'))
            return "headers: a control character";
    return read_value(head, start, at, stop);
}

static const char *read_status(Head *head, const char *line, const char *stop)
{
    static const char wrong[] = "status line: not an HTTP/1.1 one";
    if (stop - line < 12 || memcmp(line, "HTTP/1.", 7) || line[7] < '0' || line[7] > '9' || line[8] != ' ' ||
        line[9] == '0' || (stop - line > 12 && line[12] != ' '))
        return wrong;
    for (const char *c = line + 9; c < stop; c++) {
        if (c < line + 12 ? *c < '0' || *c > '9' : !is_text(*c))
            return wrong;
        if (c < line + 12)
            head->status = 10 * head->status + *c - '0';
    }
    head->keeps = line[7] != '0';
    return NULL;
}

/* Status line and fields from `at` up to the empty line that ends at `end`. */
static const char *read_head(Head *head, const char *at, const char *end)
{
    const char *wrong = NULL;
    for (int line = 0; at < end && !wrong; line++) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        while (line && feed + 1 < end && is_blank(feed[1]))  /* it goes on there */
            feed = memchr(feed + 1, '\n', (size_t)(end - feed - 1));
        const char *stop = feed > at && feed[-1] == '\r' ? feed - 1 : feed;
        if (!line)
            wrong = read_status(head, at, stop);
        else if (stop > at)
            wrong = read_field(head, at, stop);
        at = feed + 1;
    }
    return wrong;
}

/* Where the head ends (behind its empty line), or 0. */
static size_t head_end(Framing *f, const char *raw, size_t size)
{
    for (size_t i = f->seen > f->head ? f->seen : f->head + 1; i < size; i++) {
        const char *feed = memchr(raw + i, '\n', size - i);
        if (!feed)
            break;
        i = (size_t)(feed - raw);
        size_t before = raw[i - 1] == '\r' ? i - 1 : i;
        if (before > f->head && raw[before - 1] == '\n')
            return i + 1;
    }
    f->seen = size;
    return 0;
}

static const char *begin_body(Framing *f, const Head *head)
{
    f->keeps = head->keeps;
    f->left = 0;
    if (head->status == 101)
        return "status 101: the server changes to a protocol that was not asked for";
    if (head->missized && !head->chunked)
        return "content-length: not one number";
    if (head->status < 200) {
        f->place = HEAD;  /* the answer itself comes afterwards */
    } else if (head->status == 204 || head->status == 304) {
        f->place = COMPLETE;
    } else if (head->chunked) {
        f->place = CHUNK_SIZE;
        f->line = 0;
    } else if (head->sized) {
        f->left = head->length;
        f->place = f->left ? LENGTH : COMPLETE;
    } else {
        f->place = TO_CLOSE;
        f->keeps = false;
    }
    return NULL;
}

/* ---- chunks and trailers ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One character behind a chunk's size: blanks, an extension after ';', the line's end. */
static bool end_line(Framing *f, char c)
{
    switch (f->in_line) {
    case BLANKS:
        f->in_line = c == '\r' ? RETURN : c == ';' ? TEXT : BLANKS;
        return c == '\r' || c == ';' || is_blank(c);
    case TEXT:
        f->in_line = c == '\r' ? RETURN : TEXT;
        return c == '\r' || is_text(c);
    default:
        return c == '\n';
    }
}

/* One character of the trailers. */
static bool read_trailer(Framing *f, char c)
{
    bool starts = f->in_line == START;
    if (f->in_line == RETURN || c == '\n') {
        if (starts || f->in_line == EMPTY)
            f->place = COMPLETE;
        bool fits = f->in_line != NAME;
        f->in_line = START;
        return c == '\n' && fits;
    }
    if (f->in_line == EMPTY)
        return false;
    if (c == '\r') {
        bool fits = f->in_line != NAME;
        f->in_line = starts ? EMPTY : RETURN;
        return fits;
    }
    if (starts)
        f->in_line = is_blank(c) && f->line ? TEXT : NAME;
    if (f->in_line == TEXT)
        return is_text(c);
    if (c == ':' && !starts)
        f->in_line = TEXT;
    return is_token(c) || f->in_line == TEXT;
}

const char *framing_feed(Framing *f, const char *raw, size_t raw_bytes, size_t size, size_t head_bytes)
{
    const char *p = raw + raw_bytes - size, *const end = raw + raw_bytes;
    while (p < end) {
        size_t span = (size_t)(end - p);
        switch (f->place) {
        case HEAD: {
            const char *start = raw + f->head;
            size_t have = raw_bytes - f->head, stop = head_end(f, raw, raw_bytes);
            if (memcmp(start, "HTTP/1.", have < 7 ? have : 7))
                return "the answer starts with something else than HTTP/1.";
            if ((stop ? stop - f->head : have) > head_bytes)
                return "headers without an end, or too long";
            if (!stop)
                return NULL;
            Head head = {0};
            const char *wrong = read_head(&head, start, raw + stop);
            if (wrong || (wrong = begin_body(f, &head)))
                return wrong;
            f->head = f->seen = stop;
            p = raw + stop;
            break;
        }
        case TO_CLOSE:
            see_body(f, p, span);
            p = end;
            break;
        case LENGTH:
        case CHUNK_DATA:
            if (span > f->left)
                span = (size_t)f->left;
            see_body(f, p, span);
            p += span;
            f->left -= span;
            if (!f->left) {
                f->place = f->place == LENGTH ? COMPLETE : CHUNK_END;
                f->in_line = BLANKS;
            }
            break;
        case CHUNK_SIZE:
            if (hex(*p) >= 0) {
                if (++f->line > MOST_DIGITS)
                    return "chunk size: too many digits";
                f->left = f->left * 16 + (uint64_t)hex(*p++);
                break;
            }
            if (!f->line)
                return "chunk size: no number";
            f->place = CHUNK_LINE;
            f->in_line = BLANKS;
            break;
        case CHUNK_LINE:
            if (!end_line(f, *p) || ++f->line > head_bytes)
                return "chunk size: no number, or a line that is too long";
            if (*p == '\n') {
                f->place = f->left ? CHUNK_DATA : TRAILER;
                f->line = 0;
                f->in_line = START;
            }
            p++;
            break;
        case CHUNK_END:  /* its line end */
            if (*p == '\n')
                f->place = CHUNK_SIZE;
            else if (*p != '\r' || f->in_line == RETURN)
                return "chunk size: the chunk is longer";
            f->in_line = RETURN;
            p++;
            break;
        case TRAILER:
            if (!read_trailer(f, *p++) || ++f->line > head_bytes)
                return "trailers: no header lines, or too long";
            break;
        case COMPLETE:
            f->surplus = true;
            return NULL;
        }
    }
    return NULL;
}
