/* The paced server's loop: one thread, epoll, answers made beforehand, every send at its absolute time and logged.

   `paced_loop.py` does the same in Python and says what each part is for; this file exists because Python can't send
   100,000 events a second on one core. The log's layout is that of `server_log.py`. */

#define PY_SSIZE_T_CLEAN
#define _GNU_SOURCE
#include <Python.h>

#include <ctype.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define VARIANTS_MAX 64
#define ID_MAX 255
#define REQUEST_MAX (64u << 20) /* largest request that is read */
#define TOKENS_MAX (1u << 22)   /* most tokens of one answer */
#define SENDS_BETWEEN_POLLS 16 /* a new request waits for so many sends at most before it is read */
#define SPIN_NS 80000          /* the last stretch before a due send is spun: sleeping would wake late */
#define LOOK_NS 50000000       /* how often the interpreter's signals are looked at, and an idle log is written out */
#define LOG_BYTES (256u << 10)
#define PIECE_MAX 1024 /* of an answer; a send puts at most nine together */

enum { LOG_ABORTED = 1, LOG_BLOCKED = 2 };
enum { COMPLETION, COMPLETION_IDS, CHAT, SHAPES };

typedef struct {
    const char *data;
    size_t size;
} Piece;

typedef struct {
    Piece opening, tokens[VARIANTS_MAX], final, usage[4];
    int variants;
} Shape;

typedef struct {
    char *data;
    size_t size, capacity;
} Buffer;

typedef struct Connection {
    int fd; /* -1: closed, and freed when neither the heap nor the events at hand can name it any more */
    struct Connection *next_dead;
    uint64_t number;
    Buffer in, out; /* read and not used; what the socket wouldn't take yet */
    size_t out_at;
    int answering, in_heap, close_after, usage, shape, blocked;
    uint32_t asked, sent, prompt_tokens;
    uint64_t stamp, arrived, first_due; /* stamp: when the kernel got the last bytes that were read; 0: not known */
    uint64_t *sends;
    uint32_t sends_capacity;
    char id[ID_MAX + 1];
} Connection;

typedef struct {
    uint64_t due;
    Connection *connection;
} Entry;

typedef struct {
    uint32_t size;
    uint16_t id_size, flags;
    uint64_t arrived, first_due, ended;
    uint32_t asked, sent;
} Frame;

typedef struct { /* lives in the log's first page, for whoever follows the run */
    char magic[8];
    uint64_t port, itl, started, ended, tokens, blocked;
} Head;

typedef struct {
    int listener, epoll, log_fd;
    uint64_t ttft, itl, connections;
    int lockstep;
    Piece head, head_close, done, models, whole, refused;
    Shape shapes[SHAPES];
    Entry *heap;
    size_t heap_size, heap_capacity;
    Connection *dead;
    Buffer log;
    volatile Head *counts;
    int failed; /* errno of what can't go on */
} Server;

static uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* When the kernel got what a message holds, on the monotonic clock: it stamps with the wall clock. 0: not said. */
static uint64_t stamp_of(struct msghdr *message) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPNS) continue;
        struct timespec t;
        memcpy(&t, CMSG_DATA(part), sizeof t);
        uint64_t stamp = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
        uint64_t wall = clock_ns(CLOCK_REALTIME), now = now_ns();
        return stamp <= wall && wall - stamp < 10000000000ull ? now - (wall - stamp) : 0;
    }
    return 0;
}

static int buffer_add(Buffer *buffer, const void *data, size_t size) {
    if (buffer->size + size > buffer->capacity) {
        size_t capacity = (buffer->size + size) * 2 + 256;
        char *grown = realloc(buffer->data, capacity);
        if (!grown) return -1;
        buffer->data = grown;
        buffer->capacity = capacity;
    }
    memcpy(buffer->data + buffer->size, data, size);
    buffer->size += size;
    return 0;
}

/* Due times; of equal ones the older connection first, so that a lock-step tick always has the same order. */

static int before(Entry a, Entry b) {
    return a.due != b.due ? a.due < b.due : a.connection->number < b.connection->number;
}

static void heap_down(Server *server, size_t at) {
    Entry *heap = server->heap, moved = heap[at];
    for (size_t child; (child = 2 * at + 1) < server->heap_size; at = child) {
        if (child + 1 < server->heap_size && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], moved)) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static int heap_add(Server *server, uint64_t due, Connection *connection) {
    if (server->heap_size == server->heap_capacity) {
        size_t capacity = server->heap_capacity * 2 + 1024;
        Entry *grown = realloc(server->heap, capacity * sizeof(Entry));
        if (!grown) return -1;
        server->heap = grown;
        server->heap_capacity = capacity;
    }
    Entry entry = {due, connection};
    size_t at = server->heap_size++;
    while (at && before(entry, server->heap[(at - 1) / 2])) {
        server->heap[at] = server->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    server->heap[at] = entry;
    connection->in_heap = 1;
    return 0;
}

static void bury(Server *server, Connection *connection) {
    connection->next_dead = server->dead;
    server->dead = connection;
}

static void heap_drop(Server *server) {
    server->heap[0].connection->in_heap = 0;
    if (server->heap[0].connection->fd < 0) bury(server, server->heap[0].connection);
    server->heap[0] = server->heap[--server->heap_size];
    if (server->heap_size) heap_down(server, 0);
}

/* The log. */

static void log_write(Server *server) {
    for (size_t at = 0; at < server->log.size;) {
        ssize_t count = write(server->log_fd, server->log.data + at, server->log.size - at);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            server->failed = errno;
            break;
        }
        at += (size_t)count;
    }
    server->log.size = 0;
}

static void log_request(Server *server, Connection *connection, int flags) {
    static const char zeros[8] = {0};
    size_t id_size = strlen(connection->id), padding = (8 - id_size % 8) % 8;
    Frame frame = {
        .size = (uint32_t)(sizeof(Frame) + id_size + padding + connection->sent * sizeof(uint64_t)),
        .id_size = (uint16_t)id_size,
        .flags = (uint16_t)(flags | (connection->blocked ? LOG_BLOCKED : 0)),
        .arrived = connection->arrived,
        .first_due = connection->first_due,
        .ended = now_ns(),
        .asked = connection->asked,
        .sent = connection->sent,
    };
    if (buffer_add(&server->log, &frame, sizeof frame) || buffer_add(&server->log, connection->id, id_size) ||
        buffer_add(&server->log, zeros, padding) ||
        buffer_add(&server->log, connection->sends, connection->sent * sizeof(uint64_t)))
        server->failed = ENOMEM;
    connection->answering = 0;
    server->counts->ended++;
    if (server->log.size > LOG_BYTES) log_write(server);
}

/* Connections. */

static void free_dead(Server *server) {
    while (server->dead) {
        Connection *connection = server->dead;
        server->dead = connection->next_dead;
        free(connection->in.data);
        free(connection->out.data);
        free(connection->sends);
        free(connection);
    }
}

static void connection_close(Server *server, Connection *connection) {
    if (connection->answering) log_request(server, connection, LOG_ABORTED);
    close(connection->fd);
    connection->fd = -1;
    if (!connection->in_heap) bury(server, connection);
}

static void watch(Server *server, Connection *connection, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = connection};
    if (epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->fd, &event)) server->failed = errno;
}

/* Hand bytes to the socket; what it won't take is kept and goes first next time. -1: the connection is gone. */
static int hand_over(Server *server, Connection *connection, const char *data, size_t size) {
    size_t taken = 0;
    if (!connection->out.size) {
        ssize_t count = send(connection->fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count == (ssize_t)size) return 0;
        if (count < 0 && errno != EAGAIN && errno != EINTR) return -1;
        taken = count < 0 ? 0 : (size_t)count;
        watch(server, connection, EPOLLIN | EPOLLOUT);
    }
    connection->blocked = 1;
    server->counts->blocked++;
    return buffer_add(&connection->out, data + taken, size - taken);
}

static size_t put(char *to, size_t at, Piece piece) {
    memcpy(to + at, piece.data, piece.size);
    return at + piece.size;
}

static size_t put_usage(char *to, size_t at, const Shape *shape, uint32_t prompt, uint32_t output) {
    char text[5 * PIECE_MAX];
    int size = 0;
    uint32_t numbers[3] = {prompt, prompt + output, output};
    for (int i = 0; i < 4; i++) {
        memcpy(text + size, shape->usage[i].data, shape->usage[i].size);
        size += (int)shape->usage[i].size;
        if (i < 3) size += sprintf(text + size, "%u", numbers[i]);
    }
    at += (size_t)sprintf(to + at, "%x\r\n", (unsigned)size);
    memcpy(to + at, text, (size_t)size);
    memcpy(to + at + size, "\r\n", 2);
    return at + (size_t)size + 2;
}

/* Send one token's event; with the last one all that ends the answer. */
static void send_token(Server *server, Connection *connection, int with_head) {
    const Shape *shape = &server->shapes[connection->shape];
    char text[12 * PIECE_MAX];
    size_t size = 0;
    if (with_head) size = put(text, size, connection->close_after ? server->head_close : server->head);
    if (!connection->sent) size = put(text, size, shape->opening);
    int last = connection->sent + 1 >= connection->asked;
    size = put(text, size, last ? shape->final : shape->tokens[connection->sent % (uint32_t)shape->variants]);
    if (last) {
        if (connection->usage) size = put_usage(text, size, shape, connection->prompt_tokens, connection->asked);
        size = put(text, size, server->done);
        memcpy(text + size, "0\r\n\r\n", 5);
        size += 5;
    }
    connection->sends[connection->sent] = now_ns();
    if (hand_over(server, connection, text, size)) {
        connection_close(server, connection);
        return;
    }
    connection->sent++;
    server->counts->tokens++;
    if (!last) return;
    log_request(server, connection, 0);
    if (connection->close_after && !connection->out.size) connection_close(server, connection);
}

/* Requests. */

static const char *find(const char *data, size_t size, const char *what) {
    return memmem(data, size, what, strlen(what));
}

static const char *header(const char *head, size_t size, const char *name, size_t *value_size) {
    size_t name_size = strlen(name);
    for (const char *line = head; (line = memchr(line, '\n', size - (size_t)(line - head)));) {
        line++;
        if (size - (size_t)(line - head) <= name_size) return NULL;
        if (strncasecmp(line, name, name_size) || line[name_size] != ':') continue;
        const char *value = line + name_size + 1, *end = memchr(value, '\r', size - (size_t)(value - head));
        if (!end) return NULL;
        while (value < end && *value == ' ') value++;
        *value_size = (size_t)(end - value);
        return value;
    }
    return NULL;
}

static const char *json_value(const char *body, size_t size, const char *key) {
    const char *at = find(body, size, key), *end = body + size;
    if (!at) return NULL;
    for (at += strlen(key); at < end && (*at == ' ' || *at == ':'); at++) {}
    return at < end ? at : NULL;
}

static int json_true(const char *body, size_t size, const char *key) {
    const char *value = json_value(body, size, key);
    return value && (size_t)(body + size - value) >= 4 && !memcmp(value, "true", 4);
}

static uint32_t json_number(const char *body, size_t size, const char *key) {
    const char *value = json_value(body, size, key), *end = body + size;
    uint64_t number = 0;
    for (; value && value < end && isdigit((unsigned char)*value) && number <= TOKENS_MAX; value++)
        number = number * 10 + (uint64_t)(*value - '0');
    return (uint32_t)number;
}

static uint32_t prompt_tokens(const char *body, size_t size) {
    const char *value = json_value(body, size, "\"prompt\""), *end = body + size;
    if (!value || *value != '[') return (uint32_t)(size / 4 + 1);
    uint32_t count = 1;
    for (; value < end && *value != ']'; value++) count += *value == ',';
    return count;
}

static uint64_t first_due(const Server *server, uint64_t arrived) {
    uint64_t due = arrived + server->ttft;
    if (!server->lockstep || !server->itl) return due;
    uint64_t past = due % server->itl;
    return past ? due + server->itl - past : due;
}

/* Answer a request whose bytes are all there. -1: the connection is gone. */
static int answer(Server *server, Connection *connection, size_t head_size, size_t body_size) {
    const char *head = connection->in.data, *body = head + head_size;
    size_t size;
    const char *value = header(head, head_size, "connection", &size);
    connection->close_after = value && size == 5 && !strncasecmp(value, "close", 5);
    value = header(head, head_size, "x-request-id", &size);
    if (!value) size = 0;
    if (size > ID_MAX) size = ID_MAX;
    if (size) memcpy(connection->id, value, size);
    connection->id[size] = 0;
    connection->asked = json_number(body, body_size, "\"max_tokens\"");
    if (!connection->asked) connection->asked = json_number(body, body_size, "\"max_completion_tokens\"");
    Piece fixed = {NULL, 0};
    if (memcmp(head, "POST ", 5)) fixed = server->models;
    else if (!json_true(body, body_size, "\"stream\"")) fixed = server->whole;
    else if (!connection->asked || connection->asked > TOKENS_MAX) fixed = server->refused;
    if (fixed.size) {
        if (hand_over(server, connection, fixed.data, fixed.size)) goto gone;
        if (connection->close_after && !connection->out.size) goto gone;
        return 0;
    }
    if (connection->asked > connection->sends_capacity) {
        uint64_t *grown = realloc(connection->sends, connection->asked * sizeof(uint64_t));
        if (!grown) goto gone;
        connection->sends = grown;
        connection->sends_capacity = connection->asked;
    }
    const char *line_end = memchr(head, '\r', head_size);
    connection->shape = find(head, (size_t)(line_end - head), "/chat/completions") ? CHAT
                        : json_true(body, body_size, "\"return_token_ids\"")       ? COMPLETION_IDS
                                                                                   : COMPLETION;
    connection->usage = json_true(body, body_size, "\"include_usage\"");
    connection->prompt_tokens = prompt_tokens(body, body_size);
    connection->first_due = first_due(server, connection->arrived);
    connection->sent = 0;
    connection->answering = 1;
    connection->blocked = 0;
    server->counts->started++;
    int at_once = connection->first_due <= connection->arrived;
    if (!at_once) {
        Piece first = connection->close_after ? server->head_close : server->head;
        if (hand_over(server, connection, first.data, first.size)) goto gone;
    } else {
        send_token(server, connection, 1);
        if (!connection->answering) return connection->fd < 0 ? -1 : 0;
    }
    uint64_t due = connection->first_due + connection->sent * server->itl;
    if (heap_add(server, due, connection)) server->failed = ENOMEM;
    return 0;
gone:
    connection_close(server, connection);
    return -1;
}

/* Look at what has been read, and answer the next request if it is whole. */
static void answer_next(Server *server, Connection *connection) {
    while (!connection->answering && !connection->out.size && connection->in.size) {
        Buffer *in = &connection->in;
        const char *end = find(in->data, in->size, "\r\n\r\n");
        if (!end) return;
        size_t head_size = (size_t)(end - in->data) + 4, body_size = 0, size;
        const char *value = header(in->data, head_size, "content-length", &size);
        if (value) body_size = strtoull(value, NULL, 10);
        if (body_size > REQUEST_MAX) {
            connection_close(server, connection);
            return;
        }
        if (in->size < head_size + body_size) return;
        connection->arrived = connection->stamp ? connection->stamp : now_ns();
        connection->stamp = 0;
        size_t used = head_size + body_size;
        if (answer(server, connection, head_size, body_size)) return;
        memmove(in->data, in->data + used, in->size - used);
        in->size -= used;
    }
}

static void read_request(Server *server, Connection *connection) {
    Buffer *in = &connection->in;
    if (in->capacity - in->size < 4096) {
        size_t capacity = in->capacity * 2 + 8192;
        char *grown = capacity <= 2 * (size_t)REQUEST_MAX ? realloc(in->data, capacity) : NULL;
        if (!grown) {
            connection_close(server, connection);
            return;
        }
        in->data = grown;
        in->capacity = capacity;
    }
    char control[128];
    struct iovec room = {in->data + in->size, in->capacity - in->size};
    struct msghdr message = {
        .msg_iov = &room, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t count = recvmsg(connection->fd, &message, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
        connection_close(server, connection);
        return;
    }
    in->size += (size_t)count;
    connection->stamp = stamp_of(&message);
    answer_next(server, connection);
}

static void write_rest(Server *server, Connection *connection) {
    Buffer *out = &connection->out;
    size_t left = out->size - connection->out_at;
    ssize_t count = send(connection->fd, out->data + connection->out_at, left, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count < 0) {
        connection_close(server, connection);
        return;
    }
    connection->out_at += (size_t)count;
    if (connection->out_at < out->size) return;
    out->size = connection->out_at = 0;
    if (connection->close_after && !connection->answering) {
        connection_close(server, connection);
        return;
    }
    watch(server, connection, EPOLLIN);
    answer_next(server, connection);
}

static void accept_all(Server *server) {
    for (int count = 0; count < 64; count++) {
        int fd = accept4(server->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC), one = 1;
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) server->failed = errno;
            return;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Connection *connection = calloc(1, sizeof *connection);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (!connection || epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event)) {
            close(fd);
            free(connection);
            server->failed = ENOMEM;
            return;
        }
        connection->fd = fd;
        connection->number = server->connections++;
    }
}

/* Send what is due, at most a few at a time; whether more is due already. */
static int send_due(Server *server) {
    for (int count = 0; count < SENDS_BETWEEN_POLLS; count++) {
        if (!server->heap_size || server->heap[0].due > now_ns()) return 0;
        Connection *connection = server->heap[0].connection;
        if (connection->fd < 0) {
            heap_drop(server);
            continue;
        }
        if (connection->sent + 1 >= connection->asked) {
            heap_drop(server);
            send_token(server, connection, 0);
            if (connection->fd >= 0) answer_next(server, connection);
            continue;
        }
        server->heap[0].due += server->itl;
        heap_down(server, 0);
        send_token(server, connection, 0);
    }
    return 1;
}

static int wait_for(Server *server, struct epoll_event *events, int most, int more_due) {
    uint64_t wait = LOOK_NS, now = now_ns();
    if (more_due) wait = 0;
    else if (server->heap_size) {
        uint64_t due = server->heap[0].due;
        wait = due <= now + SPIN_NS ? 0 : due - now - SPIN_NS;
        if (wait > LOOK_NS) wait = LOOK_NS;
    }
    struct timespec time = {.tv_sec = 0, .tv_nsec = (long)wait};
    int count = -1;
#ifdef SYS_epoll_pwait2
    count = (int)syscall(SYS_epoll_pwait2, server->epoll, events, most, &time, NULL, 0);
    if (count >= 0 || errno != ENOSYS) return count;
#endif
    return epoll_wait(server->epoll, events, most, (int)(wait / 1000000));
}

static void run(Server *server) { /* without the interpreter's lock, for LOOK_NS */
    struct epoll_event events[256];
    uint64_t look = now_ns() + LOOK_NS;
    for (;;) {
        int more_due = send_due(server);
        int count = wait_for(server, events, 256, more_due);
        if (count < 0 && errno != EINTR) server->failed = errno;
        for (int i = 0; i < count; i++) {
            Connection *connection = events[i].data.ptr;
            if (!connection) {
                accept_all(server);
                continue;
            }
            if (connection->fd < 0) continue;
            if (events[i].events & EPOLLOUT) write_rest(server, connection);
            else read_request(server, connection);
            if (i % SENDS_BETWEEN_POLLS == SENDS_BETWEEN_POLLS - 1) send_due(server);
        }
        free_dead(server);
        if (server->failed) return;
        if (now_ns() >= look) {
            if (server->counts->started == server->counts->ended && server->log.size) log_write(server);
            return;
        }
    }
}

/* From Python. */

static int piece(PyObject *owner, const char *name, Piece *to) {
    PyObject *value = PyObject_GetAttrString(owner, name);
    if (!value) return -1;
    char *data;
    Py_ssize_t size;
    int failed = PyBytes_AsStringAndSize(value, &data, &size);
    if (!failed && size > PIECE_MAX) failed = -1, PyErr_Format(PyExc_ValueError, "%s: too long", name);
    *to = (Piece){data, failed ? 0 : (size_t)size};
    Py_DECREF(value); /* `owner` holds it for as long as the server runs */
    return failed;
}

static int pieces(PyObject *owner, const char *name, Piece *to, Py_ssize_t most) {
    PyObject *value = PyObject_GetAttrString(owner, name);
    if (!value) return -1;
    Py_ssize_t count = PyTuple_Check(value) ? PyTuple_GET_SIZE(value) : -1;
    if (count < 1 || count > most) {
        Py_DECREF(value);
        PyErr_Format(PyExc_ValueError, "%s: a tuple of 1 to %zd bytes is needed", name, most);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        char *data;
        Py_ssize_t size;
        int failed = PyBytes_AsStringAndSize(PyTuple_GET_ITEM(value, i), &data, &size);
        if (!failed && size > PIECE_MAX) failed = -1, PyErr_Format(PyExc_ValueError, "%s: too long", name);
        if (failed) {
            Py_DECREF(value);
            return -1;
        }
        to[i] = (Piece){data, (size_t)size};
    }
    Py_DECREF(value);
    return (int)count;
}

static int shape(PyObject *answers, const char *name, Shape *to) {
    PyObject *value = PyObject_GetAttrString(answers, name);
    if (!value) return -1;
    to->variants = pieces(value, "tokens", to->tokens, VARIANTS_MAX);
    int failed = to->variants < 1 || piece(value, "opening", &to->opening) || piece(value, "final", &to->final) ||
                 pieces(value, "usage", to->usage, 4) != 4;
    Py_DECREF(value);
    return failed ? -1 : 0;
}

static PyObject *serve(PyObject *module, PyObject *arguments) {
    Server server = {0};
    PyObject *answers;
    Py_buffer counts;
    unsigned long long ttft, itl;
    if (!PyArg_ParseTuple(arguments, "iiw*OKKp", &server.listener, &server.log_fd, &counts, &answers, &ttft, &itl,
                          &server.lockstep))
        return NULL;
    server.ttft = ttft;
    server.itl = itl;
    server.counts = counts.buf;
    server.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if ((size_t)counts.len < sizeof(Head)) {
        PyErr_SetString(PyExc_ValueError, "the buffer of counts is too small");
    } else if (server.epoll < 0 || epoll_ctl(server.epoll, EPOLL_CTL_ADD, server.listener, &event)) {
        PyErr_SetFromErrno(PyExc_OSError);
    } else if (!piece(answers, "head", &server.head) && !piece(answers, "head_close", &server.head_close) &&
               !piece(answers, "done", &server.done) && !piece(answers, "models", &server.models) &&
               !piece(answers, "whole", &server.whole) && !piece(answers, "refused", &server.refused) &&
               !shape(answers, "completion", &server.shapes[COMPLETION]) &&
               !shape(answers, "completion_ids", &server.shapes[COMPLETION_IDS]) &&
               !shape(answers, "chat", &server.shapes[CHAT])) {
        while (!server.failed && !PyErr_CheckSignals()) {
            Py_BEGIN_ALLOW_THREADS
            run(&server);
            Py_END_ALLOW_THREADS
        }
        log_write(&server);
        if (server.failed && !PyErr_Occurred()) {
            errno = server.failed;
            PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    /* Open connections end with the process: it serves once. */
    if (server.epoll >= 0) close(server.epoll);
    free(server.heap);
    free(server.log.data);
    PyBuffer_Release(&counts);
    return NULL; /* only an exception ends it */
}

static PyMethodDef methods[] = {
    {"serve", serve, METH_VARARGS,
     "serve(listener, log_fd, counts, answers, ttft_ns, itl_ns, lockstep)\n\nServe until an exception is raised by a "
     "signal's handler."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_paced", "The paced server's loop.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__paced(void) { return PyModule_Create(&module); }
